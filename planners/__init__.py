"""Planners: decision making of the agent. Importing this package prepares the process before torch is imported."""

from keep_agent.startup import start_up

start_up()
