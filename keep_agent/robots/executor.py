"""What a robot is to us: skills that can be carried out, and facts that it sees."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

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
