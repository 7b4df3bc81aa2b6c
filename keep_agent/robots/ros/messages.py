"""ROS message definitions of the project, and readers of fields of received messages.

The action has the same fields as ``Task.action`` of RAI (RobotecAI/rai). docs/robots.md shows all definitions as files.
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

# names relative to the node's namespace
ACTION, PLAN, REPORT, STATUS, FACTS = "plan_and_execute", "plan", "report", "status", "facts"


def instruction_of(task: str, description: str) -> str:
    """Return the instruction of a goal: its task, or its description if the task is blank."""
    return task.strip() or description.strip()


Listener = Callable[[Any], None]
log = logging.getLogger(__name__)


def ignore_invalid(topic: str, listener: Listener) -> Listener:
    """Wrap ``listener`` so that invalid messages are logged and ignored: a topic has no response for an error."""

    def listen(message: Any) -> None:
        try:
            listener(message)
        except DataError as error:
            log.warning("message on %s ignored: %s", topic, error)

    return listen


def field_at(message: Any, *names: str) -> Any:
    """Return the value at a path of field names. Raises DataError if a field is missing."""
    value = message
    for name in names:
        if not isinstance(value, Mapping) or name not in value:
            raise DataError(f"{message!r:.80} has no field {'.'.join(names)!r}; send a message that has it")
        value = value[name]
    return value


def text_of(message: Any, name: str) -> str:
    """Return the text of a field, or "" if it is missing. "?" replaces unpaired surrogates."""
    value = message.get(name) if isinstance(message, Mapping) else None
    return "" if value is None else str(value).encode("utf-8", "replace").decode()


def flag_of(message: Any, name: str) -> bool:
    """Read a flag: a ``bool``, a ``uint8`` of 0 or 1, or a ``std_msgs/Bool``. Raises DataError for other values."""
    value = field_at(message, name)
    flag = value["data"] if isinstance(value, Mapping) and value.keys() == {"data"} else value
    if isinstance(flag, int) and flag in (0, 1):  # a bool is an int in Python
        return bool(flag)
    raise DataError(f"{name}={value!r:.80} is neither true nor false; send a bool")
