"""Errors of AI2-THOR. Each message has the action, the seconds until the error, and the remedy."""

from __future__ import annotations

from typing import ClassVar

from keep_agent.errors import EpisodeError, KeepError

LOGS = "see ~/.ai2thor/log/unity.log and Unity's own Player.log"


class ThorError(KeepError):
    """Error of the simulator, with its ``action``, its ``reason``, and the ``seconds`` until it happened."""

    remedy: ClassVar[str] = f"{LOGS}; continue with eval.resume"

    def __init__(self, reason: str, *, action: str = "", seconds: float | None = None) -> None:
        super().__init__(reason)
        self.reason, self.action, self.seconds = reason, action, seconds

    def __str__(self) -> str:
        action = f"{self.action}: " if self.action else ""
        after = f" after {self.seconds:.1f} s" if self.seconds is not None else ""
        return f"AI2-THOR, {action}{self.reason}{after}; {self.remedy}"


class ThorStart(ThorError, RuntimeError):
    """Failed start of the process; a retry would not help, so this error ends a run."""

    remedy = f"{LOGS}; docs/thor.md lists the requirements"


class ThorTimeout(ThorError, EpisodeError, TimeoutError):
    """Time-out: a reply did not arrive completely within the limit."""

    remedy = f"raise env.thor.timeout if the machine is slow, else {LOGS}"


class ThorGone(ThorError, EpisodeError, ConnectionError):
    """Loss of the process, which has ended or closed its pipe."""


class ThorAnswer(ThorError, EpisodeError, ValueError):
    """An unusable reply: a wrong sequence id, no metadata, or values of a wrong type."""

    remedy = "check that env.thor.executable starts AI2-THOR 5"


class ThorRefusal(ThorError, EpisodeError):
    """Failed action without which an episode cannot start; the message quotes AI2-THOR's reason."""

    remedy = "check that AI2-THOR's executable has this scene and this action (docs/thor.md)"


class ThorLost(ThorError, EpisodeError):
    """Loss of the state: the room differs after a restart of the process, so the episode cannot continue."""

    remedy = "no action is needed: the episode counts as crashed, the next one begins in a new process"


def thor_error(error: BaseException) -> ThorError | None:
    """Return the ThorError among ``error`` and its context (the error that ai2thor was handling), or None."""
    return next((candidate for candidate in (error, error.__context__) if isinstance(candidate, ThorError)), None)


PROCESS_FAULTS = (ThorTimeout, ThorGone, ThorAnswer)  # faults after which the process is replaced
