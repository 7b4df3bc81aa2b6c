"""Robot interface: the skill executor, its errors, and facts as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from envs.fact import Fact
from envs.outcome import Outcome
from keep_agent.agent.validation import checked_facts
from keep_agent.errors import DataError, KeepError


class SkillExecutor(Protocol):
    """Robot that carries out one skill at a time. Other threads call `observe` and `cancel` during `execute`."""

    def skills(self) -> Sequence[str]:
        """Return the skills that are possible now; "done", which ends a task, may be among them or not."""

    def observe(self) -> Iterable[Fact]:
        """Return facts that have changed since the last call; also called during `execute`."""

    def execute(self, skill: str, feedback: Callable[[str], None]) -> Outcome:
        """Block until the skill has succeeded or failed. ``feedback`` is called with progress messages.

        Raises `SkillLost` if the skill may still be running. This error, like every other one, ends the task.
        """

    def cancel(self) -> None:
        """Cancel the running skill, if any: its `execute` returns a failed outcome. May be called repeatedly."""


class RobotError(KeepError, RuntimeError):
    """An error of a robot or of its connection."""


class RobotTimeout(RobotError, TimeoutError):
    """A call that exceeded its time limit."""


class ConnectionLost(RobotError, ConnectionError):
    """A lost or failed connection to a robot."""


class SkillLost(RobotError):
    """A skill with unknown outcome: the robot may still be moving."""


class NotInstalled(RobotError, ImportError):
    """A missing library; the message says how to install it."""


def read_facts(text: str) -> list[Fact]:
    """Read facts from a JSON array of objects, or from one object. Raises DataError.

    ``category`` defaults to "object", ``type`` to the id without its number: "mug" for "mug_1".
    """
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"facts must be a JSON array of objects, not {text[:80]!r} ({error})") from None
    return checked_facts(map(_with_defaults, rows if isinstance(rows, list) else [rows]), lambda id: None)


def _with_defaults(row: Any) -> Mapping[str, Any]:
    if not isinstance(row, dict) or not isinstance(row.get("id"), str):
        raise DataError(f"a fact must be a JSON object with an id such as 'mug_1', not {row!r:.80}")
    return {"category": "object", "type": row["id"].rpartition("_")[0] or row["id"]} | row
