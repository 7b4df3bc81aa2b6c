"""An agent whose memory survives the process: what a call has done is on the disk before the call returns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.outcome import Outcome, checked_flag
from keep_agent.agent import Agent
from keep_agent.api import Decision
from keep_agent.errors import ConfigError, DataError
from keep_agent.files import writing
from keep_agent.journal import Journal
from keep_agent.memory_file import read_memory, write_memory
from keep_agent.trace import Entry, fact_entry

if TYPE_CHECKING:
    from planners.styles import FactView

MEMORY, JOURNAL = "memory.json", "journal.jsonl"
CALLS, BYTES = 500, 8 << 20  # in the journal, after which the whole memory is written


class DurableAgent:
    """`Agent`, with a folder: the memory as it was, and a journal of the calls since.

    Killed at any moment and opened again, it remembers every call that has returned. Keys and values are encoded anew.
    Calls of several threads take turns.
    """

    def __init__(self, agent: Agent, folder: Path, instead: Mapping[str, Any] | None = None) -> None:
        """Opens what the folder holds, or begins there.

        :param instead: what `dump` gave: begin with that, whatever the folder holds, be it damaged
        :raises ConfigError: another agent has the folder open
        :raises StorageError: it cannot be written
        :raises DataError: the folder holds another memory than this agent's planner can read, or a damaged one; or
            ``instead`` cannot be
        """
        if instead is not None:
            agent.restore(instead)
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self.agent, self.folder = agent, folder
        self._lock = threading.Lock()
        self._behind = False  # something was done that the journal does not hold
        self._journal = Journal(folder / JOURNAL, anew=instead is not None)
        try:
            self._read() if instead is None else self._write()
        except BaseException:
            self._journal.close()
            raise

    @property
    def name(self) -> str:
        return self.agent.name

    def observe(self, facts: Iterable[FactView | Mapping[str, Any]]) -> None:
        with self._open():
            found = self.agent.observe(facts)
            self._keep("observe", facts=[fact_entry(fact) for fact in found])

    def plan(
        self,
        instruction: str,
        skills: Sequence[str],
        ready: Callable[[Entry], None] | None = None,
        after: int | None = None,
    ) -> Decision:
        with self._open():
            before = self.agent.number
            decision = self.agent.plan(instruction, skills, ready, after)
            if decision.number != before or self._behind:
                self._keep("plan", **self.agent.last_decision)
            return decision

    def report(self, outcome: Outcome, number: int | None = None) -> None:
        with self._open():
            self.agent.report(outcome, number)
            self._keep("report", ok=outcome.ok, message=outcome.message, number=number)

    def finish(self, success: bool) -> None:
        with self._open():
            self.agent.finish(success)
            self._keep("finish", success=checked_flag("success", success))  # numpy's cannot be written as JSON

    def dump(self) -> dict[str, Any]:
        with self._open():
            return self.agent.dump()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Remember what `dump` gave, and nothing else. Raises DataError; then nothing has changed."""
        with self._open():
            self.agent.restore(state)
            self._behind = True
            self._write()

    def compact(self) -> None:
        """Write the whole memory, so that the journal begins anew."""
        with self._open():
            self._write()

    def close(self, write: bool = True) -> None:
        """Write the whole memory, if something has happened, and let go of it. May be called twice.

        :param write: False where the folder is about to be deleted
        """
        with self._lock:
            if self._journal.closed:
                return
            if write and (self._behind or self._journal.size):
                self._write()
            self._journal.close()
            self.agent.close()

    @contextmanager
    def _open(self) -> Iterator[None]:
        """One call at a time, and none after the end."""
        with self._lock:
            if self._journal.closed:
                raise ConfigError(f"agent {self.name!r} was closed: open it again")
            yield

    def _keep(self, call: str, **values: Any) -> None:
        """Put what was done on the disk; after a failure, all of it with the next call."""
        behind, self._behind = self._behind, True
        if not behind:
            self._journal.append({"call": call, **values})
            self._behind = False
        if behind or self._journal.number % CALLS == 0 or self._journal.size > BYTES:
            self._write()

    def _write(self) -> None:
        if self._behind:
            self._journal.number += 1  # of a line that was refused but may be there: it is in what is written now
        write_memory(self.folder / MEMORY, {**self.agent.dump(), "journal": self._journal.number})
        self._behind = False
        self._journal.restart()

    def _read(self) -> None:
        """What the folder holds."""
        path, kept = self.folder / MEMORY, 0
        if path.exists():
            state = read_memory(path)
            self.agent.restore(state, bounded=False)
            kept = _number(state, path)
        calls = self._journal.after(kept)
        self.agent.together(lambda: self._play(calls))

    def _play(self, calls: Sequence[Mapping[str, Any]]) -> None:
        """What was called since the memory was written."""
        agent = self.agent
        for given in calls:
            values = dict(given)
            match values.pop("call", None):
                case "observe":
                    agent.observe(values["facts"])
                case "plan":
                    agent.decided(**values)
                case "report":
                    agent.report(Outcome(values["ok"], values["message"]), values["number"])
                case "finish":
                    agent.finish(values["success"])
                case other:
                    raise DataError(
                        f"{self.folder / JOURNAL} holds the unknown call {other!r}: another version wrote it"
                    )


def _number(state: Mapping[str, Any], path: Path) -> int:
    number = state.get("journal")
    if type(number) is not int or number < 0:
        raise DataError(f"{path} does not say which calls are in it; restore it as a file of an agent's save()")
    return number
