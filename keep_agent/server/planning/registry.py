"""The agents of a server: each a folder, open while it is used, asleep on the disk when others need the room."""

from __future__ import annotations

import logging
import shutil
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

from omegaconf import OmegaConf

from keep_agent.agent.agent import Agent
from keep_agent.agent.durable import DurableAgent
from keep_agent.agent.trace_recorder import Recorder
from keep_agent.config.planner_factory import Brain
from keep_agent.errors import CapacityError, ConfigError, KeepError
from keep_agent.server.error_handlers import Conflict, NotFound, Unavailable
from keep_agent.server.folder_lock import claimed
from keep_agent.server.settings import AgentLimits
from memory.files.atomic import sync
from memory.files.names import agent_stem

AGENTS, RUNS, DELETED = "agents", "runs", ".deleted-"  # in a server's folder
log = logging.getLogger(__name__)


@dataclass
class _Entry:
    """Where an agent sleeps, or is awake."""

    agent: DurableAgent | None = None
    users: int = 0
    gone: bool = False  # deleted
    lock: threading.Lock = field(default_factory=threading.Lock)  # to wake up, and to go to sleep


class Registry:
    """Agents by their ids. Safe to use from several threads. Raises ConfigError if another process has the folder."""

    def __init__(self, brain: Brain, folder: Path, limits: AgentLimits | None = None, trace: bool = True) -> None:
        self._brain, self.limits, self._trace = brain, limits or AgentLimits(), trace
        self._agents, self.runs = folder / AGENTS, folder / RUNS
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._lock = threading.Lock()
        for path in (self._agents, self.runs):
            path.mkdir(parents=True, exist_ok=True)
        self._claim, self._closed = claimed(folder), False
        for left in self._agents.glob(f"{DELETED}*"):
            shutil.rmtree(left, ignore_errors=True)

    def names(self, among: Collection[str] | None = None) -> list[str]:
        """All there are, asleep or not; of ``among`` only, if that is given: then others take no time."""
        if among is not None:
            return sorted(name for name in among if self._place(name).is_dir())
        found = ((path.name, path.name.rpartition("-")[0]) for path in self._agents.iterdir() if path.is_dir())
        return sorted(name for folder, name in found if name and not folder.startswith("."))

    def create(self, name: str, reserved: bool = False) -> None:
        """Raises Conflict if there is one of this id, CapacityError if there are too many, ConfigError for the id.

        ``reserved``: a token is for this agent by its name; then the number of others does not matter.
        """
        place = self._place(name)
        with self._lock:
            if place.exists():
                raise Conflict(f"there is an agent {name!r} already; use it, or delete it first")
            if not reserved and len(self.names()) >= self.limits.agents:
                raise CapacityError(f"there are {self.limits.agents} agents, no more are allowed; delete one first")
            place.mkdir()
            sync(self._agents)

    @contextmanager
    def use(self, name: str) -> Iterator[DurableAgent]:
        """An agent, awake until the end of the block. Raises NotFound."""
        with self._entry(name) as entry:
            with entry.lock:
                self._check(entry, name)
                if entry.agent is None:
                    entry.agent = self._wake(name)
            try:
                yield entry.agent
            except ConfigError:
                with entry.lock:  # it may have been deleted meanwhile, or is being deleted
                    self._check(entry, name)
                raise

    def replace(self, name: str, state: Mapping[str, Any]) -> None:
        """Let an agent remember what `DurableAgent.dump` gave, also one that cannot be woken up. Raises NotFound."""
        with self._entry(name) as entry, entry.lock:
            self._check(entry, name)
            try:
                entry.agent = entry.agent or self._wake(name)
            except KeepError as error:
                entry.agent = self._wake(name, state)
                log.warning("agent %s has got another memory; its own could not be read: %s", name, error)
            else:
                entry.agent.restore(state)

    def delete(self, name: str) -> None:
        """Forget an agent and all it has left on the disk: nothing is read or written for it. Raises NotFound."""
        with self._entry(name) as entry, entry.lock:
            self._check(entry, name)
            self._put_to_sleep(name, entry, write=False)
            self._brain.forget(name)
            gone = self._agents / f"{DELETED}{token_hex(8)}"
            with self._lock:
                self._place(name).rename(gone)
                self._recorder(name).remove()  # before another one has the name
                self._entries.pop(name, None)
            entry.gone = True
            sync(self._agents)
        shutil.rmtree(gone, ignore_errors=True)

    @contextmanager
    def _entry(self, name: str) -> Iterator[_Entry]:
        """The agent's, which stays where it is until the end of the block."""
        with self._lock:
            if not self._place(name).is_dir():
                raise _nobody(name)
            entry = self._entries.setdefault(name, _Entry())
            self._entries.move_to_end(name)
            entry.users += 1
        try:
            yield entry
        finally:
            with self._lock:
                entry.users -= 1
            self._make_room()

    def _check(self, entry: _Entry, name: str) -> None:
        """To be asked by whoever holds the entry's lock."""
        if entry.gone:
            raise _nobody(name)
        if self._closed:
            raise Unavailable("this server is ending; ask it when it is up again")

    @property
    def awake(self) -> int:
        return sum(entry.agent is not None for entry in list(self._entries.values()))

    def close(self) -> None:
        """Put all to sleep: what they remember is on the disk. Nobody wakes up any more."""
        self._closed = True
        for name, entry in list(self._entries.items()):
            with entry.lock:
                self._put_to_sleep(name, entry)
        self._claim.close()

    def _place(self, name: str) -> Path:
        return self._agents / agent_stem(name)

    def _recorder(self, name: str) -> Recorder:
        plain = OmegaConf.to_container(self._brain.config, resolve=True)
        return Recorder(self.runs, agent_stem(name), name, {**plain, "agent": name})

    def _wake(self, name: str, instead: Mapping[str, Any] | None = None) -> DurableAgent:
        record = self._recorder(name) if self._trace else None
        agent = Agent(self._brain.planner(name), name, limit=self.limits.things, record=record)
        try:
            return DurableAgent(agent, self._place(name), instead)
        except BaseException:
            agent.close()
            raise

    def _make_room(self) -> None:
        """The least recently used that nobody uses go to sleep."""
        with self._lock:
            idle = [(name, entry) for name, entry in self._entries.items() if not entry.users]
            excess = max(0, len(self._entries) - self.limits.awake)
        for name, entry in idle[:excess]:
            with entry.lock:
                if not entry.users:
                    self._put_to_sleep(name, entry)
            with self._lock:
                if not entry.users and entry.agent is None and self._entries.get(name) is entry:
                    del self._entries[name]

    @staticmethod
    def _put_to_sleep(name: str, entry: _Entry, write: bool = True) -> None:
        """It stays awake where that fails: its journal has all that was acknowledged."""
        try:
            if entry.agent is not None:
                entry.agent.close(write)
                entry.agent = None
        except Exception:
            log.exception("agent %s cannot be put to sleep", name)


def _nobody(name: str) -> NotFound:
    return NotFound(f"there is no agent {name!r}; create it with POST /v1/agents")
