"""Robots, which execute the planner's skills and report facts. docs/robots.md describes their interface."""

# ruff: noqa: E402 (`start_up` must precede all other imports, also in commands such as keep_agent.robots.ros1)
from keep_agent.startup import start_up

start_up()

from keep_agent.robots.executor import ConnectionLost, NotInstalled, RobotError, RobotTimeout, SkillExecutor, SkillLost
from keep_agent.robots.session import RobotSession
from keep_agent.robots.symbolic import SymbolicExecutor, symbolic
from keep_agent.robots.task.events import (
    Event,
    Executed,
    Feedback,
    Finished,
    Limits,
    Observed,
    Planned,
    Started,
    Step,
    TaskReport,
)

__all__ = [
    "ConnectionLost", "Event", "Executed", "Feedback", "Finished", "Limits", "NotInstalled", "Observed", "Planned",
    "RobotError", "RobotSession", "RobotTimeout", "SkillExecutor", "SkillLost", "Started", "Step", "SymbolicExecutor",
    "TaskReport", "symbolic",
]  # fmt: skip
