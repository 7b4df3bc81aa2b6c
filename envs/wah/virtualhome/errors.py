"""What can go wrong between us and the simulator. Each error carries its numbers, and says them with the remedy."""

from __future__ import annotations

from typing import ClassVar
from urllib.parse import urlsplit

from envs.wah.virtualhome.address import DEFAULT_PORT
from keep_agent.errors import KeepError

EXCERPT = 120  # characters


class SimulatorError(KeepError):
    """A call that came to nothing: which (``action``), where (``at``), how often it was tried, for how long."""

    remedy: ClassVar[str] = "restart the simulator"

    def __init__(self, what: str, *, status: int | None = None, sent: bool = True) -> None:
        """``status`` is the HTTP status if there was an answer; ``sent`` is False if nothing left this machine."""
        super().__init__(what)
        self.what, self.status, self.sent = what, status, sent
        self.action, self.at = "", ""
        self.tries, self.seconds = 1, 0.0
        self.uncertain = False  # it may have been done, and must not be done twice

    def __str__(self) -> str:
        parts = [f"{self.action} at {self.at}: {self.what}"]
        if self.seconds:
            parts.append(f"tried {'once' if self.tries == 1 else f'{self.tries} times'} in {self.seconds:.1f} s")
        if self.uncertain:
            parts.append("it may have been done all the same, so it is not sent again: reset before going on")
        return "; ".join([*parts, self.remedy.format(port=self._port())])

    def _port(self) -> int:
        return urlsplit(self.at).port or DEFAULT_PORT


class SimulatorBusy(SimulatorError):
    """It worked on another request all the time (status 429)."""

    remedy = "let the other program finish, or start a simulator of your own with another -http-port"


class SimulatorTimeout(SimulatorError, TimeoutError):
    """No whole answer in time, or it gave up itself (status 408)."""

    remedy = "see whether the simulator hangs, and restart it"


class SimulatorGone(SimulatorError, ConnectionError):
    """Nobody listens, or the connection broke."""

    remedy = "start the simulator with -http-port={port} or set env.simulator"


class SimulatorAnswer(SimulatorError, ValueError):
    """An answer of no use: another status than 200, no JSON, fields that are missing or wrong."""

    remedy = "check that a VirtualHome 2 simulator listens at port {port}; if it does, restart it"


class SimulatorRefusal(SimulatorAnswer):
    """A proper answer with success=false, where that ends the matter; the message has the simulator's words."""

    remedy = "change what is asked for; the simulator's log, Player.log, may say more"


class ReplayDeparted(SimulatorError):
    """A recorded conversation was asked something else than what was recorded, or more."""

    remedy = "make the same calls from the start, or record anew"


def excerpt(text: str) -> str:
    """The first characters, for a message."""
    return repr(text) if len(text) <= EXCERPT else f"{text[:EXCERPT]!r}..."
