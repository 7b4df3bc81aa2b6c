"""What both ways of talking to the client have in common."""

from __future__ import annotations

from typing import Any, Protocol

from envs.alfred.thor_stub.simulator import Answer

GARBAGE = b"\xc1 this is no metadata"  # a byte that msgpack never uses, and no JSON


class Gone(Exception):
    """The client has hung up: the end."""


class Channel(Protocol):
    """One answer goes out for every action that comes in, and one before the first. All raise `Gone`."""

    def open(self) -> None:
        """Get ready to send."""
        ...

    def send(self, answer: Answer, garbage: bool = False, half: bool = False) -> None:
        """``half``: stop in the middle of it."""
        ...

    def receive(self) -> dict[str, Any]: ...

    def idle(self) -> None:
        """Wait until the client is gone, and say nothing."""
        ...
