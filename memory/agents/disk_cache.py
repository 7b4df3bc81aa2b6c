"""Agents' rows on a disk: written in the background, mapped when read. What is damaged is reported, never served."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from keep_agent.errors import DataError
from memory.agents.cache_file import header_of, restore, tensors_of
from memory.agents.host_cache import Key
from memory.agents.text_match import TokenText
from memory.engine.models.model_spec import ModelSpec
from memory.files import agent_files as disk
from memory.files.atomic import clean
from memory.files.background_writer import Writer
from memory.kv_cache.quantized import QuantizedCache

logger = logging.getLogger(__name__)
SWEEP = "sweep"  # the writer's key for putting the folder in order


@dataclass
class DiskCache:
    """The files of a folder.

    :param budget: bytes of all files, the least recently used go; None: no limit
    :param clock: seconds since 1970
    :param ttl: files that were not used for so many seconds go; None: never
    :param kept: says which agents' files stay, however large or old
    :param quota: bytes; who has no more in all files loses none to the budget
    """

    folder: Path
    budget: int | None
    clock: Callable[[], float]
    ttl: float | None
    kept: Callable[[], Collection[str]]
    quota: int = 0

    def __post_init__(self) -> None:
        self._writer = Writer()
        self._lock = threading.Lock()
        self._failed: dict[Key, Exception] = {}
        self.damaged: list[str] = []  # what was wrong with files that could not be read
        clean(self.folder)
        self._writer.put(SWEEP, self._sweep)

    @property
    def failed(self) -> dict[Key, Exception]:
        """Why what an agent remembers is not on the disk, or an older state of it."""
        with self._lock:
            return dict(self._failed)

    @property
    def nbytes(self) -> int:
        return disk.total_bytes(self.folder)

    def put(self, key: Key, cache: QuantizedCache, told: TokenText, used: float) -> None:
        """Write in the background. The cache must not go on: forks of it may."""
        self._writer.put(key, partial(self._save, key, cache, told, used))

    def get(self, key: Key, spec: ModelSpec, device: torch.device) -> tuple[QuantizedCache, TokenText] | None:
        """What the file holds, checked to the last bit; None if there is none, or it is too old or damaged."""
        self.wait(key)
        path = disk.agent_path(self.folder, *key)
        try:
            if path.stat().st_mtime < self._oldest() and key[0] not in self.kept():
                return None
            file = disk.open_agent(self.folder, *key)
            disk.touch(path, self.clock())
            file.verify()
            cache = restore(file, spec, device)
            return cache, TokenText.from_json({**file.header["told"], "ids": cache.tokens})
        except (DataError, KeyError, TypeError, OSError) as error:
            if path.exists():  # or there was none, or it was evicted this moment
                self._report(key[0], path, error)
            return None

    def wait(self, *keys: Key) -> None:
        """Until what was to be written under these keys is on the disk, or has failed."""
        self._writer.wait(lambda key: key in keys)

    def wait_for(self, agents: Collection[str] | None = None) -> None:
        """Until what was to be written for these agents (None: for all) is on the disk, or has failed."""
        self._writer.wait(lambda key: agents is None or (key != SWEEP and key[0] in agents))

    def raise_failed(self, held: Collection[Key], agents: Collection[str] | None = None) -> None:
        """Raise what kept a file of these agents (None: of any) from being written. What is not ``held`` any more is
        lost, and raised for once.
        """
        with self._lock:
            failed = {key: error for key, error in self._failed.items() if agents is None or key[0] in agents}
            self._failed = {key: self._failed[key] for key in self._failed if key in held or key not in failed}
        for error in failed.values():
            raise error

    def sweep(self) -> None:
        """Have the folder put in order, in the background."""
        self._writer.put(SWEEP, self._sweep)

    def forget(self, agent: str) -> int:
        """Delete an agent's files, also what waits to be written; how many there were."""
        self._writer.drop(lambda key: key != SWEEP and key[0] == agent)
        files = disk.forget(self.folder, agent)
        with self._lock:
            self._failed = {key: error for key, error in self._failed.items() if key[0] != agent}
        return files

    def close(self) -> None:
        self._writer.close()

    def _save(self, key: Key, cache: QuantizedCache, told: TokenText, used: float) -> None:
        """What goes wrong here is kept for whoever asks; an older file stays what it was."""
        try:
            tensors, extra = tensors_of(cache)
            said = {name: value for name, value in told.to_json().items() if name != "ids"}
            header = {**header_of(cache), "told": said}
            disk.touch(disk.save_agent(self.folder, *key, cache.next_position, tensors, header, extra), used)
        except Exception as error:
            logger.warning("what agent %r remembers could not be written: %s", key[0], error)
            with self._lock:
                self._failed[key] = error
            return
        with self._lock:
            self._failed.pop(key, None)
        self._sweep()

    def _sweep(self) -> None:
        if self.ttl is not None:
            disk.expire(self.folder, self._oldest(), self.kept())
        if self.budget is not None:
            disk.evict(self.folder, self.budget, self.kept(), self.quota)

    def _oldest(self) -> float:
        """What was last used before is too old."""
        return 0.0 if self.ttl is None else self.clock() - self.ttl

    def _report(self, agent: str, path: Path, error: Exception) -> None:
        said = str(error) if isinstance(error, DataError) else f"{path} cannot be read ({error!r}): delete it"
        logger.warning("the memory of agent %r cannot be used and is computed anew: %s", agent, said)
        with self._lock:
            self.damaged.append(said)
