"""What is said over ROS, as ROS writes it down. docs/robots.md shows how to make a package of it.

The action has the goal, feedback and result of RAI's ``Task.action`` (RobotecAI/rai), with a report.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from keep_agent.errors import DataError

PACKAGE = "keep_agent_msgs"

TASK_ACTION = """\
string task
string description
string priority
---
bool success
string report
---
string current_status
"""

PLAN_SERVICE = """\
string instruction
string[] skills
---
string skill
bool ok
string report
"""

REPORT_SERVICE = """\
bool ok
string message
---
bool ok
string report
"""

# Names below the namespace of a node
ACTION, PLAN, REPORT, STATUS, FACTS = "plan_and_execute", "plan", "report", "status", "facts"


def instruction_of(task: str, description: str) -> str:
    """What the planner is told of a goal: the task; its description where the task says nothing."""
    return task.strip() or description.strip()


Listener = Callable[[Any], None]
log = logging.getLogger(__name__)


def listening(topic: str, listener: Listener) -> Listener:
    """Log and ignore what ``listener`` refuses: a topic has nobody who waits for an answer."""

    def heard(message: Any) -> None:
        try:
            listener(message)
        except DataError as error:
            log.warning("message on %s ignored: %s", topic, error)

    return heard


def member(message: Any, *names: str) -> Any:
    """The value at a path of names. Raises DataError."""
    found = message
    for name in names:
        if not isinstance(found, Mapping) or name not in found:
            raise DataError(f"{message!r:.80} has no field {'.'.join(names)!r}; send one that has it")
        found = found[name]
    return found


def text_of(message: Any, name: str) -> str:
    """A field's text, "" where there is none. Halves of surrogate pairs, which cannot be written, become "?"."""
    value = message.get(name) if isinstance(message, Mapping) else None
    return "" if value is None else str(value).encode("utf-8", "replace").decode()


def flag_of(message: Any, name: str) -> bool:
    """Whether a field is true: a ``bool``, a ``uint8`` of 0 or 1, or a ``std_msgs/Bool``.

    Raises DataError for a missing field and for every other value: text such as "false" would count as true.
    """
    value = member(message, name)
    flag = value["data"] if isinstance(value, Mapping) and value.keys() == {"data"} else value
    if isinstance(flag, int) and flag in (0, 1):  # a bool is an int
        return bool(flag)
    raise DataError(f"{name}={value!r:.80} is neither true nor false; send a bool")
