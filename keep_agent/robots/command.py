"""Command-line options of the commands that serve a robot (ROS 1, ROS 2, rosbridge): planner, robot and limits."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any

from keep_agent.agent.types import Planning
from keep_agent.errors import ConfigError
from keep_agent.robots.executor import SkillExecutor
from keep_agent.robots.session import SessionOptions
from keep_agent.robots.task.events import Limits

TOKEN = "KEEP_AGENT_TOKEN"
DEFAULT_EXECUTOR = "keep_agent.robots.symbolic:symbolic"


@dataclass(frozen=True, slots=True)
class RobotSetup:
    planner: Planning
    executor: SkillExecutor
    options: SessionOptions


def parser(program: str, description: str | None) -> ArgumentParser:
    """Make a parser with the options that these commands have in common."""
    options = ArgumentParser(prog=program, description=description)
    options.add_argument("--server", metavar="URL", help="URL of a KEEP Agent server, such as http://localhost:8000")
    options.add_argument("--agent", default="robot", metavar="ID", help="agent id on the server (default: %(default)s)")
    options.add_argument("--token", default=os.environ.get(TOKEN), help=f"token for the server (default: ${TOKEN})")
    planner = "instead of --server: function that takes the executor and returns a planner; "
    planner += "keep_agent.robots.scripted:ScriptedPlanning needs no model"
    options.add_argument("--planner", metavar="MODULE:FUNCTION", help=planner)
    executor = "function that returns your robot's SkillExecutor (default: %(default)s, a symbolic house)"
    options.add_argument("--executor", default=DEFAULT_EXECUTOR, metavar="MODULE:FUNCTION", help=executor)
    options.add_argument("--name", default="keep_agent", help="ROS node name and topic prefix (default: %(default)s)")
    for field in fields(Limits):
        note = f"limit `{field.name}` of a session, see docs/robots.md (default: %(default)s)"
        kind, default = type(field.default), field.default
        options.add_argument(f"--limit-{field.name}", type=kind, default=default, metavar="N", help=note)
    return options


def make_setup(arguments: Namespace) -> RobotSetup:
    """Make the planner and the robot that a command line names. Raises ConfigError."""
    executor = _load("--executor", arguments.executor)()
    limits = Limits(**{field.name: getattr(arguments, f"limit_{field.name}") for field in fields(Limits)})
    options: SessionOptions = {"limits": limits, "judge": getattr(executor, "judge", None)}
    return RobotSetup(_planner(arguments, executor), executor, options)


def _planner(arguments: Namespace, executor: SkillExecutor) -> Planning:
    if bool(arguments.server) == bool(arguments.planner):
        raise ConfigError("name a server (--server URL) or a planner (--planner MODULE:FUNCTION), not both")
    if arguments.planner:
        return _load("--planner", arguments.planner)(executor)
    from keep_agent.agent.client import Client  # lazy: --help needs no HTTP

    return Client(arguments.server, token=arguments.token).agent(arguments.agent)


def _load(option: str, text: str) -> Callable[..., Any]:
    module, _, name = text.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{option}={text!r} cannot be imported ({error}): write MODULE:FUNCTION") from error
