"""Durable agent: the effect of every call is on the disk before the call returns."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from envs.outcome import Outcome, checked_flag
from keep_agent.agent.agent import Agent
from keep_agent.agent.memory_file import pack_state, read_packed, unpack_state, write_packed
from keep_agent.agent.types import Decision, Ready
from keep_agent.errors import ConfigError, CorruptError, DataError
from keep_agent.files import reading, writing
from keep_agent.rollout.trace import fact_entry
from memory.files.atomic import lock_is_held
from memory.files.end_mark import MarkedFile, end_of, read_marked
from memory.files.json_lines import Chain

if TYPE_CHECKING:
    from planners.prompts.styles import FactView

MEMORY, JOURNAL = "memory.json", "journal.jsonl"
OWNER_KEY = "agent"  # key of the agent's name in the memory file
MAX_CALLS, MAX_BYTES = 500, 8 << 20  # lines and bytes of the journal; at either limit the memory is written
VERSION_0_2 = re.compile(rb"\d+ [0-9a-f]{8} \{")  # start of a journal line that version 0.2 wrote
REMEDY = "restore all files of the agent from one copy, or replace them by a saved memory, such as a memory.json"


def read_journal(path: Path, start: Chain, owner: str, new: bool) -> tuple[MarkedFile, list[dict[str, Any]]]:
    """Open a journal for appending; return it and its calls, which were made after the memory file was written.

    The journal has a line per call, with a checksum, synced before the call returns. The chain of checksums begins
    with the agent's name and the memory file's checksum. A file beside the journal, the end mark, has the number of
    lines. Changed, missing and swapped lines are thus found. An incomplete last line is cut: its call never returned.

    :param start: beginning of the chain of checksums
    :param owner: name of the agent in errors
    :param new: accept an empty journal without an end mark as a new journal; otherwise it counts as damaged
    :raises DataError: version 0.2 wrote the journal
    :raises CorruptError: a line or the end mark is damaged, missing or from another journal
    """
    with reading(path), path.open("rb") as stream:
        if VERSION_0_2.match(stream.readline()):
            raise DataError(
                f"{path} was left behind by version 0.2; open and close the agent with that version, or delete the "
                "file to continue without the calls in it"
            )
    if new and not end_of(path).exists() and not path.stat().st_size:
        return MarkedFile.begin(path, start), []
    lines = read_marked(path, start, owner, REMEDY)
    return MarkedFile(path, lines[-1] if lines else None, start), [line.value for line in lines]


def lock_stream(stream: IO[bytes], folder: Path) -> None:
    """Lock a file until it is closed. Raises ConfigError naming ``folder`` if the file is already locked."""
    if lock_is_held(stream):
        stream.close()
        raise ConfigError(f"another server or agent uses {folder}; stop it, or choose another folder")


def lock_folder(folder: Path) -> BinaryIO:
    """Lock a server's folder; closing the returned file unlocks it. Raises ConfigError if it is locked."""
    folder.mkdir(parents=True, exist_ok=True)
    stream = (folder / "lock").open("ab")
    lock_stream(stream, folder)
    return stream


class DurableAgent:
    """`Agent` with a folder: a memory file, and a journal of later calls. Safe to call from several threads.

    If the process is killed, a new instance has the effects of all calls that returned; keys and values are recomputed.
    """

    def __init__(self, agent: Agent, folder: Path, replacement: Mapping[str, Any] | None = None) -> None:
        """Open the agent in a folder, or create it there.

        :param replacement: state from `dump` that replaces the folder's content, which may be damaged
        :raises ConfigError: another agent has the folder open
        :raises StorageError: the folder cannot be written
        :raises DataError: files or ``replacement`` are damaged, of another agent or planner, or do not belong together
        """
        if replacement is not None:
            agent.restore(replacement)
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self.agent, self.folder = agent, folder
        self._lock = threading.Lock()
        self._incomplete = False  # whether a call that has taken effect is missing in the journal
        with writing(folder / JOURNAL):
            self._stream = (folder / JOURNAL).open("ab")  # locked against other agents
        lock_stream(self._stream, folder)
        self._journal = MarkedFile(folder / JOURNAL)
        try:
            self._read() if replacement is None else self._write()
        except BaseException:
            self._stream.close()
            raise

    @property
    def name(self) -> str:
        return self.agent.name

    def observe(self, facts: Iterable[FactView | Mapping[str, Any]]) -> None:
        with self._open():
            items = self.agent.observe(facts)
            self._log_call("observe", facts=[fact_entry(fact) for fact in items])

    def plan(
        self, instruction: str, skills: Sequence[str], ready: Ready | None = None, after: int | None = None
    ) -> Decision:
        with self._open():
            before = self.agent.number
            try:
                decision = self.agent.plan(instruction, skills, ready, after)
            except BaseException:
                self._incomplete |= self.agent.number != before  # the decision was made before the error
                raise
            if decision.number != before or self._incomplete:
                self._log_call("plan", **self.agent.last_decision)
            return decision

    def report(self, outcome: Outcome, number: int | None = None) -> None:
        with self._open():
            self.agent.report(outcome, number)
            self._log_call("report", ok=outcome.ok, message=outcome.message, number=number)

    def finish(self, success: bool) -> None:
        with self._open():
            self.agent.finish(success)
            self._log_call("finish", success=checked_flag("success", success))  # a numpy bool cannot be written as JSON

    def dump(self) -> dict[str, Any]:
        with self._open():
            return self.agent.dump()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace the memory with a state from `dump`. After a DataError nothing has changed."""
        with self._open():
            self.agent.restore(state)
            self._incomplete = True
            self._write()

    def compact(self) -> None:
        """Write the whole memory and empty the journal."""
        with self._open():
            self._write()

    def close(self, write: bool = True) -> None:
        """Write the memory if it has changed and ``write`` is true, then close the agent. May be called twice."""
        with self._lock:
            if not self._stream.closed:
                if write and (self._incomplete or self._journal.size):
                    self._write()
                self._stream.close()
                self.agent.close()

    @contextmanager
    def _open(self) -> Iterator[None]:
        """Hold the lock. Raises ConfigError after `close`."""
        with self._lock:
            if self._stream.closed:
                raise ConfigError(f"agent {self.name!r} was closed: open it again")
            yield

    def _log_call(self, call: str, **values: Any) -> None:
        """Append a call to the journal. If that fails, the next call writes the whole memory."""
        incomplete, self._incomplete = self._incomplete, True
        if not incomplete:
            self._journal.append([{"call": call, **values}])
            self._incomplete = False
        if incomplete or self._journal.count >= MAX_CALLS or self._journal.size > MAX_BYTES:
            self._write()

    def _write(self) -> None:
        self._incomplete = True  # until end mark and memory file are written, no call may be appended
        content = pack_state({**self.agent.dump(), OWNER_KEY: self.name})
        start = self._start(content)
        self._journal.prepare_restart(start)  # until `restart` the journal is valid for the old and the new memory file
        write_packed(self.folder / MEMORY, content)
        self._incomplete = False
        self._journal.restart(start)

    def _start(self, content: bytes) -> Chain:
        """Return the start of the journal's chain for the ``content`` of the memory file (b"" if there is no file)."""
        return Chain.for_owner(f"{self.name}\n".encode() + content.partition(b"\n")[0])  # line 1 is the checksum

    def _read(self) -> None:
        """Load the folder. A memory file of version 0.2, which names no agent, is rewritten."""
        path = self.folder / MEMORY
        content, bound = b"", False
        if path.exists():
            content = read_packed(path)
            state = unpack_state(content, str(path))
            bound = _is_bound(state, self.name, path)
            self.agent.restore(state, bounded=False)
        owner = f"{path} of agent {self.name!r}" if content else f"agent {self.name!r}, which has no {MEMORY}"
        self._journal, calls = read_journal(self.folder / JOURNAL, self._start(content), owner, new=not bound)
        self.agent.replay(lambda: self._replay_calls(calls))
        if content and not bound:
            self._write()

    def _replay_calls(self, calls: Sequence[Mapping[str, Any]]) -> None:
        agent = self.agent
        for call in calls:
            values = dict(call)
            match values.pop("call", None):
                case "observe":
                    agent.observe(values["facts"])
                case "plan":
                    agent.replay_decision(values.pop("instruction"), request=values.pop("asked"), **values)
                case "report":
                    agent.report(Outcome(values["ok"], values["message"]), values["number"])
                case "finish":
                    agent.finish(values["success"])
                case unknown:
                    path = self.folder / JOURNAL
                    raise DataError(f"{path} holds the unknown call {unknown!r}: another version wrote it")


def _is_bound(state: Mapping[str, Any], name: str, path: Path) -> bool:
    """Return True if the file names agent ``name``, False if version 0.2 wrote it. Raises DataError for other files."""
    if OWNER_KEY in state and state[OWNER_KEY] != name:
        raise CorruptError(
            f"{path} is the memory of agent {state[OWNER_KEY]!r}, not of {name!r}; restore the file of {name!r}, or "
            "load this one as a saved memory"
        )
    if OWNER_KEY not in state and "journal" not in state:
        raise DataError(f"{path} is a saved memory, not a memory file of a folder; load it with load()")
    return OWNER_KEY in state
