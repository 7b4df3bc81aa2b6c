"""Experiments. Each of their commands begins here, before torch is imported."""

from keep_agent.startup import start_up

start_up()
