"""Experiments. Every command imports this package first, which prepares the process before torch is imported."""

from keep_agent.startup import start_up

start_up()
