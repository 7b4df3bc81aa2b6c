"""Registry of a server's planning agents: each has a folder; the least recently used are unloaded to disk."""

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
from keep_agent.agent.durable import DurableAgent, lock_folder
from keep_agent.agent.trace_recorder import TraceRecorder
from keep_agent.config.planner_factory import PlannerResources
from keep_agent.errors import CapacityError, ConfigError, KeepError
from keep_agent.server.error_handlers import Conflict, NotFound, Unavailable
from keep_agent.server.settings import AgentLimits
from memory.files.atomic import sync
from memory.files.names import agent_stem

AGENTS, RUNS, DELETED = "agents", "runs", ".deleted-"  # folder names, and prefix of a deleted agent's folder
log = logging.getLogger(__name__)


@dataclass
class _AgentEntry:
    agent: DurableAgent | None = None  # None: unloaded
    users: int = 0
    is_deleted: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)  # held during loading and unloading


class AgentRegistry:
    """Agents by id. Safe to use from several threads. Raises ConfigError if another process uses the folder."""

    def __init__(
        self, resources: PlannerResources, folder: Path, limits: AgentLimits | None = None, trace: bool = True
    ) -> None:
        self._resources, self.limits, self._trace = resources, limits or AgentLimits(), trace
        self._agents, self.runs = folder / AGENTS, folder / RUNS
        self._entries: OrderedDict[str, _AgentEntry] = OrderedDict()
        self._lock = threading.Lock()
        for path in (self._agents, self.runs):
            path.mkdir(parents=True, exist_ok=True)
        self._lock_file, self._is_closed = lock_folder(folder), False
        for unfinished in self._agents.glob(f"{DELETED}*"):
            shutil.rmtree(unfinished, ignore_errors=True)

    def names(self, among: Collection[str] | None = None) -> list[str]:
        """List all agents, loaded or not; with ``among`` only those of its ids that exist."""
        if among is not None:
            return sorted(name for name in among if self._agent_folder(name).is_dir())
        folders = [path.name for path in self._agents.iterdir() if path.is_dir() and not path.name.startswith(".")]
        return sorted(name for name in (folder.rpartition("-")[0] for folder in folders) if name)

    def create(self, name: str, above_limit: bool = False) -> None:
        """Create an agent; ``above_limit`` ignores the limit. Raises Conflict, CapacityError, ConfigError."""
        place = self._agent_folder(name)
        with self._lock:
            if place.exists():
                raise Conflict(f"there is an agent {name!r} already; use it, or delete it first")
            if not above_limit and len(self.names()) >= self.limits.agents:
                raise CapacityError(f"there are {self.limits.agents} agents, no more are allowed; delete one first")
            place.mkdir()
            sync(self._agents)

    @contextmanager
    def use(self, name: str) -> Iterator[DurableAgent]:
        """Load an agent, and keep it loaded during the block. Raises NotFound."""
        with self._entry(name) as entry:
            with entry.lock:
                self._check(entry, name)
                if entry.agent is None:
                    entry.agent = self._load(name)
            try:
                yield entry.agent
            except ConfigError:
                with entry.lock:  # raises NotFound instead if the agent was deleted during the call
                    self._check(entry, name)
                raise

    def replace(self, name: str, state: Mapping[str, Any]) -> None:
        """Replace an agent's memory with one from `DurableAgent.dump`, even if its own is damaged. Raises NotFound."""
        with self._entry(name) as entry, entry.lock:
            self._check(entry, name)
            try:
                entry.agent = entry.agent or self._load(name)
            except KeepError as error:
                entry.agent = self._load(name, state)
                log.warning("agent %s has a new memory; its own could not be read: %s", name, error)
            else:
                entry.agent.restore(state)

    def delete(self, name: str) -> None:
        """Delete an agent and its files without loading it; needs no free disk space. Raises NotFound."""
        with self._entry(name) as entry, entry.lock:
            self._check(entry, name)
            self._unload(name, entry, write=False)
            self._resources.forget(name)
            trash = self._agents / f"{DELETED}{token_hex(8)}"
            with self._lock:
                self._agent_folder(name).rename(trash)
                self._recorder(name).remove()  # deletes its traces, before another agent can get the name
                self._entries.pop(name, None)
            entry.is_deleted = True
            sync(self._agents)
        shutil.rmtree(trash, ignore_errors=True)

    @contextmanager
    def _entry(self, name: str) -> Iterator[_AgentEntry]:
        """Mark an agent's entry as in use during the block."""
        with self._lock:
            if not self._agent_folder(name).is_dir():
                raise _no_agent(name)
            entry = self._entries.setdefault(name, _AgentEntry())
            self._entries.move_to_end(name)
            entry.users += 1
        try:
            yield entry
        finally:
            with self._lock:
                entry.users -= 1
            self._unload_idle()

    def _check(self, entry: _AgentEntry, name: str) -> None:
        """Raise NotFound for a deleted agent, Unavailable at shutdown. The caller holds the entry's lock."""
        if entry.is_deleted:
            raise _no_agent(name)
        if self._is_closed:
            raise Unavailable("this server is shutting down; try again after its restart")

    @property
    def loaded_count(self) -> int:
        return sum(entry.agent is not None for entry in list(self._entries.values()))

    def close(self) -> None:
        """Write all memories and unload the agents; no agent can be used afterwards."""
        self._is_closed = True
        for name, entry in list(self._entries.items()):
            with entry.lock:
                self._unload(name, entry)
        self._lock_file.close()

    def _agent_folder(self, name: str) -> Path:
        return self._agents / agent_stem(name)

    def _recorder(self, name: str) -> TraceRecorder:
        plain = OmegaConf.to_container(self._resources.config, resolve=True)
        return TraceRecorder(self.runs, agent_stem(name), name, {**plain, "agent": name})

    def _load(self, name: str, memory: Mapping[str, Any] | None = None) -> DurableAgent:
        record = self._recorder(name) if self._trace else None
        agent = Agent(self._resources.planner(name), name, limit=self.limits.things, record=record)
        try:
            return DurableAgent(agent, self._agent_folder(name), memory)
        except BaseException:
            agent.close()
            raise

    def _unload_idle(self) -> None:
        """Unload the least recently used idle agents while more than ``limits.awake`` are in memory."""
        with self._lock:
            idle = [(name, entry) for name, entry in self._entries.items() if not entry.users]
            excess = max(0, len(self._entries) - self.limits.awake)
        for name, entry in idle[:excess]:
            with entry.lock:
                if not entry.users:
                    self._unload(name, entry)
            with self._lock:
                if not entry.users and entry.agent is None and self._entries.get(name) is entry:
                    del self._entries[name]

    @staticmethod
    def _unload(name: str, entry: _AgentEntry, write: bool = True) -> None:
        """Unload an agent. If that fails, the agent stays loaded; its journal has all acknowledged calls."""
        try:
            if entry.agent is not None:
                entry.agent.close(write)
                entry.agent = None
        except Exception:
            log.exception("agent %s cannot be unloaded", name)


def _no_agent(name: str) -> NotFound:
    return NotFound(f"there is no agent {name!r}; create it with POST /v1/agents")
