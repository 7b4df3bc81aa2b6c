"""Faults on demand, for tests of clients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from keep_agent.errors import ConfigError

AT_START = ("die-before-pipe", "die-at-start", "die-before-actions", "hang-at-start")
AT_ACTION = ("die", "die-half", "hang", "sequence", "garbage", "error", "fail")
HELP = """what goes wrong; N is the number of an action, from 1 for the first one ever received:
  die-before-pipe     end with status 3 before anything is opened
  die-at-start        open the pipe, end before the first message
  die-before-actions  end after the first message
  hang-at-start       open the pipe, send nothing
  die:N               end instead of an answer
  die-half:N          end in the middle of an answer
  hang:N              give no answer and live on
  sequence:N          answer with a wrong sequenceId
  garbage:N           answer with metadata that cannot be decoded
  error:N:CODE        the action fails with this errorCode
  fail:N              the action fails without a word
  no-action:NAME      this build does not know the action"""


@dataclass(slots=True)
class Faults:
    """The faults of one process. ``mark`` is the file that the first fault creates."""

    at_start: frozenset[str] = frozenset()
    at_action: dict[int, tuple[str, str]] = field(default_factory=dict)  # number -> (kind, code)
    unknown: frozenset[str] = frozenset()
    mark: Path | None = None

    def starts(self, kind: str) -> bool:
        """Return whether this fault happens now, at the start."""
        if kind not in self.at_start:
            return False
        self._note()
        return True

    def at(self, number: int, action: str) -> tuple[str, str]:
        """Return (kind, code) of the fault at an action; ("", "") for none."""
        fault = self.at_action.get(number, ("", ""))
        if fault[0] or action in self.unknown:
            self._note()
        return fault

    def _note(self) -> None:
        if self.mark is not None:
            self.mark.touch()


def parse(specs: Iterable[str], mark: Path | None = None) -> Faults:
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
            raise ConfigError(f"--fault {spec!r} is unknown; --help lists them")
    return Faults(frozenset(at_start), at_action, frozenset(unknown), mark)
