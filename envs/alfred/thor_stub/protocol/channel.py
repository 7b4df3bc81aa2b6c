"""Channel between the stand-in for AI2-THOR and its client (pipes or HTTP), the serving loop, and faults for tests."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from envs.alfred.thor_stub.simulator import ActionReply, Simulator
from keep_agent.errors import ConfigError

FAULT_STATUS = 3  # exit status of a process that a fault ends
GARBAGE = b"\xc1 this is not metadata"  # the first byte is invalid in msgpack, the rest is invalid JSON
AT_START = ("die-before-pipe", "die-at-start", "die-before-actions", "hang-at-start")
AT_ACTION = ("die", "die-half", "hang", "sequence", "garbage", "error", "fail")
FAULTS = """kinds of faults; N is the number of an action, counted from 1:
  die-before-pipe     end with status 3 before anything is opened
  die-at-start        open the pipe, end before the first message
  die-before-actions  end after the first message
  hang-at-start       open the pipe, send nothing
  die:N               end instead of an answer
  die-half:N          end in the middle of an answer
  hang:N              give no answer and keep running
  sequence:N          answer with a wrong sequenceId
  garbage:N           answer with metadata that cannot be decoded
  error:N:CODE        the action fails with this errorCode
  fail:N              the action fails without a message
  no-action:NAME      this action counts as unknown"""


@dataclass(slots=True)
class Faults:
    """Faults that one process produces for tests. ``mark`` is the file that the first fault creates."""

    at_start: frozenset[str] = frozenset()
    at_action: dict[int, tuple[str, str]] = field(default_factory=dict)  # maps an action's number to (kind, code)
    unknown: frozenset[str] = frozenset()  # actions that count as unknown
    mark: Path | None = None

    def occurs_at_start(self, kind: str) -> bool:
        """Return whether a kind of fault is requested at the start; if so, create the mark file."""
        if kind not in self.at_start:
            return False
        self._create_mark()
        return True

    def fault_at(self, number: int, action: str) -> tuple[str, str]:
        """Return (kind, code) of the fault at an action, or ("", ""); a fault creates the mark file."""
        fault = self.at_action.get(number, ("", ""))
        if fault[0] or action in self.unknown:
            self._create_mark()
        return fault

    def _create_mark(self) -> None:
        if self.mark is not None:
            self.mark.touch()


def parse_faults(specs: Iterable[str], mark: Path | None = None) -> Faults:
    """Return the faults of command-line specs; none if the file ``mark`` exists. Raises ConfigError."""
    if mark is not None and mark.exists():
        return Faults()
    at_start, at_action, unknown = set(), {}, set()
    for spec in specs:
        kind, _, rest = spec.partition(":")
        number, _, code = rest.partition(":")
        if spec in AT_START:
            at_start.add(spec)
        elif kind == "no-action" and rest:
            unknown.add(rest)
        elif kind in AT_ACTION and number.isdecimal() and int(number) and bool(code) == (kind == "error"):
            at_action[int(number)] = kind, code
        else:
            raise ConfigError(f"--fault {spec!r} is unknown; --help lists the faults")
    return Faults(frozenset(at_start), at_action, frozenset(unknown), mark)


class ClientGone(Exception):
    """Disconnect of the client, after which the process ends."""


class Channel(Protocol):
    """Channel that sends a client a first message and one answer per action. Any method may raise `ClientGone`."""

    def open(self) -> None:
        """Prepare to send."""

    def send(self, reply: ActionReply, garbage: bool = False, half: bool = False) -> None:
        """Send an answer; ``garbage``: with unreadable metadata, ``half``: only the first half of its bytes."""

    def receive(self) -> dict[str, Any]: ...

    def idle(self) -> None:
        """Wait until the client has disconnected, without sending."""


def serve(channel: Channel, simulator: Simulator, faults: Faults) -> None:
    """Answer until the client has disconnected. Faults that end the process raise SystemExit."""
    try:
        _start(channel, simulator, faults)
        number = 0
        while True:
            action = channel.receive()
            number += 1
            _answer(channel, simulator, action, faults.fault_at(number, action.get("action", "")))
    except ClientGone:
        return


def _start(channel: Channel, simulator: Simulator, faults: Faults) -> None:
    if faults.occurs_at_start("die-before-pipe"):
        sys.exit(FAULT_STATUS)
    channel.open()
    if faults.occurs_at_start("die-at-start"):
        sys.exit(FAULT_STATUS)
    if faults.occurs_at_start("hang-at-start"):
        channel.idle()
    channel.send(simulator.first_reply())
    if faults.occurs_at_start("die-before-actions"):
        sys.exit(FAULT_STATUS)


def _answer(channel: Channel, simulator: Simulator, action: dict[str, Any], fault: tuple[str, str]) -> None:
    kind, code = fault
    if kind == "die":
        sys.exit(FAULT_STATUS)
    if kind == "hang":
        channel.idle()
    if kind in ("error", "fail"):
        channel.send(simulator.refuse(action, "injected" if kind == "error" else "", code))
        return
    reply = simulator.handle(action)
    if kind == "sequence":  # an id that no action has yet
        number = reply.metadata["sequenceId"] + 7
        reply = replace(reply, metadata=reply.metadata | {"sequenceId": number}, patch=None)
    channel.send(reply, garbage=kind == "garbage", half=kind == "die-half")
    if kind == "die-half":
        sys.exit(FAULT_STATUS)
