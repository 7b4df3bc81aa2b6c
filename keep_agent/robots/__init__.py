"""The robot's side: carry out what the planner decides, and tell it what is seen. docs/robots.md"""

# ruff: noqa: E402 (the bridges' commands begin here, before envs, memory or planners are imported)
from keep_agent.startup import start_up

start_up()

from keep_agent.robots.errors import ConnectionLost, NotInstalled, RobotError, RobotTimeout, SkillLost
from keep_agent.robots.executor import SkillExecutor
from keep_agent.robots.session import RobotSession
from keep_agent.robots.symbolic import SymbolicExecutor, symbolic
from keep_agent.robots.task.events import (
    Event,
    Executed,
    Feedback,
    Finished,
    Observed,
    Planned,
    Started,
    Step,
    TaskReport,
)
from keep_agent.robots.task.limits import Limits

__all__ = [
    "ConnectionLost", "Event", "Executed", "Feedback", "Finished", "Limits", "NotInstalled", "Observed", "Planned",
    "RobotError", "RobotSession", "RobotTimeout", "SkillExecutor", "SkillLost", "Started", "Step", "SymbolicExecutor",
    "TaskReport", "symbolic",
]  # fmt: skip
