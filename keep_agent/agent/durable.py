"""Durable agent: the effect of every call is on the disk before the call returns."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from envs.outcome import Outcome, checked_flag
from keep_agent.agent.agent import Agent
from keep_agent.agent.memory_file import digest_of, packed, read_packed, unpacked, write_packed
from keep_agent.agent.types import Decision, Ready
from keep_agent.errors import ConfigError, CorruptError, DataError
from keep_agent.files import reading, writing
from keep_agent.rollout.trace import fact_entry
from memory.files.atomic import taken
from memory.files.end_mark import MarkedFile, end_of, read_marked
from memory.files.json_lines import Chain

if TYPE_CHECKING:
    from planners.prompts.text import FactView


OLD = re.compile(rb"\d+ [0-9a-f]{8} \{")  # a line of version 0.2
REMEDY = "restore all files of the agent from one copy, or put a saved memory in, such as its memory.json"


class Journal:
    """The calls since the memory was written; nobody else has the file open meanwhile.

    :raises ConfigError: somebody else has it open
    """

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, MarkedFile(path)
        with writing(path):
            self._stream = path.open("ab")
        claim(self._stream, path.parent)

    def read(self, start: Chain, owner: str, new: bool) -> list[dict[str, Any]]:
        """The calls behind the memory, named ``owner``, that ``start`` stands for.

        :param new: there may be no journal yet
        :raises CorruptError: a line or the mark is damaged, missing, or belongs to something else
        """
        self._check_version()
        if new and not end_of(self._path).exists() and not self._path.stat().st_size:
            self._file = MarkedFile.begin(self._path, start)
            return []
        lines = read_marked(self._path, start, owner, REMEDY)
        self._file = MarkedFile(self._path, lines[-1] if lines else None, start)
        return [line.value for line in lines]

    def append(self, call: Mapping[str, Any]) -> None:
        """Write a call, and wait until it is on the disk. After an error nothing of it is left."""
        self._file.append([call])

    def announce(self, start: Chain) -> None:
        """Prepare for a memory that ``start`` stands for: it will hold all calls so far. Then write it, and `restart`.

        Killed in between, the journal belongs to either memory.
        """
        self._file.announce(start)

    def restart(self, start: Chain) -> None:
        """Begin anew with an empty file, behind the memory that was announced."""
        self._file.restart(start)

    @property
    def count(self) -> int:
        """Calls that are there."""
        return self._file.count

    @property
    def size(self) -> int:
        """Bytes of the lines that are there."""
        return self._file.size

    @property
    def closed(self) -> bool:
        return self._stream.closed

    def close(self) -> None:
        self._stream.close()

    def _check_version(self) -> None:
        """Raises DataError for a journal that version 0.2 wrote."""
        with reading(self._path), self._path.open("rb") as stream:
            if OLD.match(stream.readline()):
                raise DataError(
                    f"{self._path} was left behind by version 0.2; open and close the agent with that version, or "
                    "delete the file to go on without the calls in it"
                )


def claim(stream: IO[bytes], folder: Path) -> None:
    """A file that nobody else holds until it is closed, or the process ends. Raises ConfigError naming ``folder``."""
    if taken(stream):
        stream.close()
        raise ConfigError(f"another server or agent is at work in {folder}; end it, or use another folder")


MEMORY, JOURNAL = "memory.json", "journal.jsonl"
OWNER = "agent"  # in the memory file
CALLS, BYTES = 500, 8 << 20  # in the journal, after which the whole memory is written


class DurableAgent:
    """`Agent`, with a folder of its own: the memory as it was, and a journal of the calls since.

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
        :raises CorruptError: its files are damaged, or are not all this agent's and of one time
        """
        if instead is not None:
            agent.restore(instead)
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self.agent, self.folder = agent, folder
        self._lock = threading.Lock()
        self._behind = False  # something was done that the journal does not hold
        self._journal = Journal(folder / JOURNAL)
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
        self, instruction: str, skills: Sequence[str], ready: Ready | None = None, after: int | None = None
    ) -> Decision:
        with self._open():
            before = self.agent.number
            try:
                decision = self.agent.plan(instruction, skills, ready, after)
            except BaseException:
                self._behind |= self.agent.number != before  # decided, and something behind it went wrong
                raise
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
        if behind or self._journal.count >= CALLS or self._journal.size > BYTES:
            self._write()

    def _write(self) -> None:
        self._behind = True  # until all of it is there: the journal may go on behind neither of the two memories
        content = packed({**self.agent.dump(), OWNER: self.name})
        start = self._start(content)
        self._journal.announce(start)
        write_packed(self.folder / MEMORY, content)
        self._behind = False
        self._journal.restart(start)

    def _start(self, content: bytes) -> Chain:
        """The beginning of this agent's journal behind a memory file; empty: behind none."""
        return Chain.bound(f"{self.name}\n".encode() + digest_of(content))

    def _read(self) -> None:
        """What the folder holds. A memory that no journal is bound to is written again, so that one is."""
        path = self.folder / MEMORY
        content, bound = b"", False
        if path.exists():
            content = read_packed(path)
            state = unpacked(content, str(path))
            bound = _is_bound(state, self.name, path)
            self.agent.restore(state, bounded=False)
        owner = f"{path} of agent {self.name!r}" if content else f"agent {self.name!r}, which has no {MEMORY}"
        calls = self._journal.read(self._start(content), owner, new=not bound)
        self.agent.together(lambda: self._play(calls))
        if content and not bound:
            self._write()

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


def _is_bound(state: Mapping[str, Any], name: str, path: Path) -> bool:
    """Whether a memory file names its agent; those of version 0.2 do not. Raises CorruptError if it is another's."""
    if OWNER in state and state[OWNER] != name:
        raise CorruptError(
            f"{path} is the memory of agent {state[OWNER]!r}, not of {name!r}; restore its own, or give it to this "
            "agent as a saved memory"
        )
    if OWNER not in state and "journal" not in state:
        raise DataError(f"{path} does not say which calls are in it; restore it as a file of an agent's save()")
    return OWNER in state
