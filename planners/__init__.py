"""Planners: decision making of the agent. Importing the package prepares the process; torch must be imported later."""

from keep_agent.startup import start_up

start_up()
