"""Planners: how the agent decides. The commands that train them begin here, before torch is imported."""

from keep_agent.startup import start_up

start_up()
