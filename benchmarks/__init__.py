"""Benchmarks of stages and methods. keep_agent is imported first, because it configures OpenMP before torch loads."""

from keep_agent.startup import start_up

start_up()
