"""What can go wrong between us and AI2-THOR. Each error carries its numbers, and says them with the remedy."""

from __future__ import annotations

from typing import ClassVar

from keep_agent.errors import EpisodeError, KeepError

LOGS = "see ~/.ai2thor/log/unity.log and Unity's own Player.log"


class ThorError(KeepError):
    """A simulator that cannot be gone on with: what it was asked (``action``), what came, after how many seconds."""

    remedy: ClassVar[str] = f"{LOGS}; go on with eval.resume"

    def __init__(self, what: str, *, action: str = "", seconds: float | None = None) -> None:
        super().__init__(what)
        self.what, self.action, self.seconds = what, action, seconds

    def __str__(self) -> str:
        asked = f"{self.action}: " if self.action else ""
        after = f" after {self.seconds:.1f} s" if self.seconds is not None else ""
        return f"AI2-THOR, {asked}{self.what}{after}; {self.remedy}"


class ThorStart(ThorError, RuntimeError):
    """It did not come up, and will not for the next episode: this one alone ends a run."""

    remedy = f"{LOGS}; docs/thor.md says what a machine needs"


class ThorTimeout(ThorError, EpisodeError, TimeoutError):
    """No whole answer in time."""

    remedy = f"raise env.thor.timeout if the machine is slow, else {LOGS}"


class ThorGone(ThorError, EpisodeError, ConnectionError):
    """The process ended, or closed its pipe."""


class ThorAnswer(ThorError, EpisodeError, ValueError):
    """An answer of no use: another sequence id, no metadata, a list where none is."""

    remedy = "check that env.thor.executable is a build of AI2-THOR 5"


class ThorRefusal(ThorError, EpisodeError):
    """It will not do what an episode cannot begin without; the message has its words."""

    remedy = "check that the build has this scene and this action (docs/thor.md)"


class ThorLost(ThorError, EpisodeError):
    """After a restart the room is not what it was before, so the episode cannot go on."""

    remedy = "nothing to do: the episode counts as crashed, the next one begins in a new process"


def ours(error: BaseException) -> ThorError | None:
    """Our error, also where the client has raised one of its own in its place; None if there is none."""
    return next((one for one in (error, error.__context__) if isinstance(one, ThorError)), None)


LOST = (ThorTimeout, ThorGone, ThorAnswer)  # the process is gone; a new one may do better
