"""Planners: decision making of the agent. Import this package before torch: `start_up` prepares the process."""

from keep_agent.startup import start_up

start_up()
