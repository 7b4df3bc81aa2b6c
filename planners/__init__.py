"""Planners: decision making of the agent. Import the package before torch: it sets up the process."""

from keep_agent.startup import start_up

start_up()
