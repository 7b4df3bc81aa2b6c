"""Experiments. Importing this package prepares the process of each command before torch is imported."""

from keep_agent.startup import start_up

start_up()
