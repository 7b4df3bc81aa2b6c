"""Experiments. Importing this package calls `start_up`, which every command needs before it imports torch."""

from keep_agent.startup import start_up

start_up()
