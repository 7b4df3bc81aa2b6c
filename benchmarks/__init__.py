"""Timings of stages and methods. Each of them begins here, before torch is imported."""

from keep_agent.startup import start_up

start_up()
