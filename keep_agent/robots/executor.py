"""Robot interface: the skill executor, its errors, and facts as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from keep_agent.agent.validation import checked_facts
from keep_agent.errors import DataError, KeepError

if TYPE_CHECKING:
    from envs.fact import Fact
    from envs.outcome import Outcome


class SkillExecutor(Protocol):
    """Carries out one skill at a time. Calls come from several threads: `observe` and `cancel` during `execute`."""

    def skills(self) -> Sequence[str]:
        """What can be done now, to choose from. "done" need not be among them."""
        ...

    def observe(self) -> Iterable[Fact]:
        """Facts that are new or different since the last call; also called while a skill is carried out."""
        ...

    def execute(self, skill: str, feedback: Callable[[str], None]) -> Outcome:
        """Blocks until it is done or has failed. ``feedback`` takes sentences on the way.

        Raises `SkillLost` where nobody knows whether it has ended; what else it raises means that the robot is broken.
        """
        ...

    def cancel(self) -> None:
        """End the running skill soon; its `execute` then returns a failed outcome.

        Comes from another thread, and again until the skill has ended. Without a running skill it does nothing.
        """
        ...


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


def read_facts(text: str) -> list[Fact]:
    """Of a JSON array of objects, or of one object. Raises DataError for anything else.

    What has no ``category`` is an object; what has no ``type`` is what its id says: "mug" for "mug_1".
    """
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"facts are a JSON array of objects, not {text[:80]!r} ({error})") from None
    return checked_facts(map(_filled, rows if isinstance(rows, list) else [rows]), lambda id: None)


def _filled(row: Any) -> Mapping[str, Any]:
    if not isinstance(row, dict) or not isinstance(row.get("id"), str):
        raise DataError(f"a fact is an object with an id such as 'mug_1', not {row!r:.80}")
    return {"category": "object", "type": row["id"].rpartition("_")[0] or row["id"]} | row
