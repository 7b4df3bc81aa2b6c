"""Errors of the simulator's client. Messages state action, address and remedy, and for how long the call was tried."""

from __future__ import annotations

from typing import ClassVar
from urllib.parse import urlsplit

from envs.wah.virtualhome.wire import DEFAULT_PORT
from keep_agent.errors import KeepError

EXCERPT = 120  # characters


class SimulatorError(KeepError):
    """Failed call: its ``action``, the simulator's ``address``, the number of ``tries`` and their total ``seconds``."""

    remedy: ClassVar[str] = "restart the simulator"

    def __init__(self, problem: str, *, status: int | None = None, is_sent: bool = True) -> None:
        """``status``: HTTP status, if there was a response; ``is_sent``: whether any part of the request was sent."""
        super().__init__(problem)
        self.problem, self.status, self.is_sent = problem, status, is_sent
        self.action, self.address = "", ""
        self.tries, self.seconds = 1, 0.0
        self.maybe_executed = False  # the action may have been executed, and must not be repeated

    def __str__(self) -> str:
        parts = [f"{self.action} at {self.address}: {self.problem}"]
        if self.seconds:
            parts.append(f"tried {'once' if self.tries == 1 else f'{self.tries} times'} in {self.seconds:.1f} s")
        if self.maybe_executed:
            parts.append("the action may have been executed, so it is not sent again: reset before you continue")
        return "; ".join([*parts, self.remedy.format(port=urlsplit(self.address).port or DEFAULT_PORT)])


class SimulatorBusy(SimulatorError):
    """Request refused because the simulator is processing another one (status 429)."""

    remedy = "let the other program finish, or start a simulator of your own with another -http-port"


class SimulatorTimeout(SimulatorError, TimeoutError):
    """Timeout: no complete response in time, or status 408 (the simulator's own timeout)."""

    remedy = "check whether the simulator hangs, and restart it"


class SimulatorGone(SimulatorError, ConnectionError):
    """Connection failure: no server at the address, or a broken connection."""

    remedy = "start the simulator with -http-port={port} or set env.simulator"


class SimulatorAnswer(SimulatorError, ValueError):
    """An invalid response: a status other than 200, no JSON, missing or wrong fields."""

    remedy = "check that a VirtualHome 2 simulator listens at port {port}; if it does, restart it"


class SimulatorRefusal(SimulatorAnswer):
    """A valid response with success=false. The call is not repeated; the error quotes the simulator's message."""

    remedy = "change the request; the simulator's log, Player.log, may say more"


class ReplayMismatch(SimulatorError):
    """Replayed request that differs from the recorded one, or comes after the end of the recording."""

    remedy = "make the same calls from the start, or record again"


def excerpt(text: str) -> str:
    """Return the first characters of a text, for a message."""
    return repr(text) if len(text) <= EXCERPT else f"{text[:EXCERPT]!r}..."
