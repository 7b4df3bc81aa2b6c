"""Disk cache: one file of KV rows per agent and model, written in the background, mapped and verified when loaded."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path

from keep_agent.errors import DataError
from memory.agents.text_match import TokenText
from memory.engine.base import Engine, PersistentCache
from memory.files import agent_files as disk
from memory.files.atomic import remove_temp
from memory.files.background_writer import Writer
from memory.kv_cache.block import Entry
from memory.kv_cache.block_store import CacheLedger
from memory.kv_cache.quantized_file import header_of, tensors_of

Key = tuple[str, str]  # agent and model


@dataclass
class AgentRows:
    """One agent's KV rows for one model, and the text that they represent."""

    cache: PersistentCache
    token_text: TokenText
    last_use: float  # seconds since 1970
    changed: bool = False  # True: not yet passed to `DiskCache.put`


class HostCache(OrderedDict[Key, AgentRows]):
    """Rows in memory by agent and model. Blocks may become shared later, so `ledger` counts bytes at each call."""

    def ledger(self, shared: Iterable[AgentRows] = ()) -> CacheLedger[Entry]:
        """Make a ledger of the bytes of all rows; blocks that a ``shared`` cache also has do not count."""
        caches = [rows.cache for rows in shared]
        return CacheLedger(
            Entry(key, rows.cache.unshared_bytes(caches), key, rows.last_use) for key, rows in self.items()
        )


logger = logging.getLogger(__name__)
EVICTION: Key = ("", "")  # the writer's key for evicting files; no agent has an empty name
TEXT = "told"  # key of the text in a file's header; fixed, because existing files have it


@dataclass
class DiskCache:
    """Files of agents in a folder; without a folder nothing is written or read.

    :param budget: bytes of all files, beyond which the least recently used are deleted; None: no limit
    :param clock: returns Unix time
    :param ttl: seconds after their last use at which files are deleted; None: never
    :param pinned: returns the names of agents whose files are never deleted for size or age
    :param quota: bytes; an agent's files are not deleted for the budget while together they take no more than this
    """

    folder: Path | None
    budget: int | None
    clock: Callable[[], float]
    ttl: float | None
    pinned: Callable[[], Collection[str]]
    quota: int = 0

    def __post_init__(self) -> None:
        self._writer = Writer()
        self._lock = threading.Lock()
        self._failed: dict[Key, Exception] = {}
        self.damaged: list[str] = []  # errors of files that could not be read
        if self.folder is not None:
            remove_temp(self.folder)
        self.evict()

    @property
    def failed(self) -> dict[Key, Exception]:
        """Errors of failed writes. The disk then has older rows of the agent, or none."""
        with self._lock:
            return dict(self._failed)

    @property
    def nbytes(self) -> int:
        return 0 if self.folder is None else disk.total_bytes(self.folder)

    def put(self, key: Key, rows: AgentRows) -> None:
        """Write rows in the background. From now on, extend only forks of their cache, never the cache itself."""
        rows.changed = False
        if self.folder is not None:
            self._writer.put(key, partial(self._save, key, rows))

    def get(self, key: Key, engine: Engine) -> AgentRows | None:
        """Load and check an agent's file; None if it is missing, expired or damaged."""
        if self.folder is None:
            return None
        self.wait_for_writes(lambda waiting: waiting == key)
        path = disk.agent_path(self.folder, *key)
        try:
            if path.stat().st_mtime <= self._latest_expired() and key[0] not in self.pinned():
                return None
            file = disk.open_agent(self.folder, *key)
            disk.touch(path, self.clock())
            file.verify()
            cache = engine.restore_cache(file)
            return AgentRows(cache, TokenText.from_json({**file.header[TEXT], "ids": cache.tokens}), self.clock())
        except (DataError, KeyError, TypeError, OSError) as error:
            if path.exists():  # otherwise the file is missing, or was just evicted
                reason = str(error) if isinstance(error, DataError) else f"{path} cannot be read ({error!r}): delete it"
                logger.warning("the memory of agent %r cannot be used and is computed again: %s", key[0], reason)
                with self._lock:
                    self.damaged.append(reason)
            return None

    def wait_for_writes(self, select: Callable[[Key], bool] = lambda key: True) -> None:
        """Wait until all pending writes whose keys ``select`` accepts have succeeded or failed."""
        self._writer.wait(select)

    def raise_failed(self, cached: Collection[Key], agents: Collection[str] | None = None) -> None:
        """Raise the error of a failed write of these agents (None: of any agent).

        An error is raised at every call while the unwritten rows are ``cached`` in memory, otherwise only once.
        """
        with self._lock:
            failed = {key: error for key, error in self._failed.items() if agents is None or key[0] in agents}
            self._failed = {key: self._failed[key] for key in self._failed if key in cached or key not in failed}
        for error in failed.values():
            raise error

    def evict(self) -> None:
        """Delete expired files, and those beyond the budget, in the background."""
        if self.folder is not None:
            self._writer.put(EVICTION, self._evict)

    def forget(self, agent: str) -> int:
        """Delete an agent's files and cancel its pending writes; returns the number of deleted files."""
        if self.folder is None:
            return 0
        self._writer.drop(lambda key: key[0] == agent)
        files = disk.forget(self.folder, agent)
        with self._lock:
            self._failed = {key: error for key, error in self._failed.items() if key[0] != agent}
        return files

    def close(self) -> None:
        self._writer.close()

    def _save(self, key: Key, rows: AgentRows) -> None:
        """Write a file. An error is stored for `raise_failed`, and leaves the older file unchanged."""
        try:
            cache, text = rows.cache, rows.token_text.to_json()
            tensors, extra = tensors_of(cache)
            del text["ids"]  # `header_of` stores the same ids
            header = {**header_of(cache), TEXT: text}
            path = disk.save_agent(self.folder, *key, cache.next_position, tensors, header, extra)
            disk.touch(path, rows.last_use)
        except Exception as error:
            logger.warning("the memory of agent %r could not be written: %s", key[0], error)
            with self._lock:
                self._failed[key] = error
            return
        with self._lock:
            self._failed.pop(key, None)
        self._evict()

    def _evict(self) -> None:
        if self.ttl is not None or self.budget is not None:
            disk.evict(self.folder, self.budget, self.pinned(), self.quota, self._latest_expired())

    def _latest_expired(self) -> float:
        """Return a Unix time. Files that were last used at this time or earlier have expired."""
        return -inf if self.ttl is None else self.clock() - self.ttl
