"""Channel to the client: the interface of both transports, and the loop that serves a client."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, Protocol

from envs.alfred.thor_stub.faults import Faults
from envs.alfred.thor_stub.simulator import Answer, Simulator

BROKEN = 3  # exit status of a fault
GARBAGE = b"\xc1 this is no metadata"  # a byte that msgpack never uses, and no JSON


class ClientGone(Exception):
    """The client has hung up, and the process ends."""


class Channel(Protocol):
    """Sends one message at the start and one answer per action. All methods raise `ClientGone`."""

    def open(self) -> None:
        """Get ready to send."""

    def send(self, answer: Answer, garbage: bool = False, half: bool = False) -> None:
        """Send an answer; ``half``: stop in the middle."""

    def receive(self) -> dict[str, Any]: ...

    def idle(self) -> None:
        """Wait until the client is gone, without sending."""


def serve(channel: Channel, simulator: Simulator, faults: Faults) -> None:
    """Answer until the client is gone. Faults that end the process raise SystemExit."""
    try:
        _start(channel, simulator, faults)
        number = 0
        while True:
            action = channel.receive()
            number += 1
            _answer(channel, simulator, action, faults.at(number, action.get("action", "")))
    except ClientGone:
        return


def _start(channel: Channel, simulator: Simulator, faults: Faults) -> None:
    if faults.starts("die-before-pipe"):
        sys.exit(BROKEN)
    channel.open()
    if faults.starts("die-at-start"):
        sys.exit(BROKEN)
    if faults.starts("hang-at-start"):
        channel.idle()
    channel.send(simulator.first())
    if faults.starts("die-before-actions"):
        sys.exit(BROKEN)


def _answer(channel: Channel, simulator: Simulator, action: dict[str, Any], fault: tuple[str, str]) -> None:
    kind, code = fault
    if kind == "die":
        sys.exit(BROKEN)
    if kind == "hang":
        channel.idle()
    if kind in ("error", "fail"):
        channel.send(simulator.refuse(action, "injected" if kind == "error" else "", code))
        return
    answer = simulator.handle(action)
    if kind == "sequence":  # the id of another action
        number = answer.metadata["sequenceId"] + 7
        answer = replace(answer, metadata=answer.metadata | {"sequenceId": number}, patch=None)
    channel.send(answer, garbage=kind == "garbage", half=kind == "die-half")
    if kind == "die-half":
        sys.exit(BROKEN)
