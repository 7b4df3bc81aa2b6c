"""What can go wrong between planner and robot, by name."""

from __future__ import annotations

from keep_agent.errors import KeepError


class RobotError(KeepError, RuntimeError):
    """A robot, or what connects us with it, that does not do what it should."""


class RobotTimeout(RobotError, TimeoutError):
    """No answer in time."""


class ConnectionLost(RobotError, ConnectionError):
    """The connection to a robot is gone, or never came about."""


class SkillLost(RobotError):
    """Nobody knows what became of a skill: the robot may still be moving."""


class NotInstalled(RobotError, ImportError):
    """A library that this adapter needs is missing; the message says how to get it."""
