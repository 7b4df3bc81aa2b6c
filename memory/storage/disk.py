"""Blocks in a file that outlives the process: mapped, verified layer by layer when touched, replaced as a whole."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from platformdirs import user_cache_path

from keep_agent.errors import ConfigError, CorruptError
from memory.files.agent_files import agent_path, forget, open_agent
from memory.files.atomic import clean
from memory.kv_cache.block import KVBlock
from memory.kv_cache.mapped_rows import DamagedError
from memory.kv_cache.quantization import PackFormat
from memory.stages import Capabilities
from memory.storage.block_pages import Form, Pages, save_pages
from memory.storage.ledger import Entry, Ledger

log = logging.getLogger(__name__)

LAYOUT = 2  # raise it whenever the same blocks make another file


@dataclass
class Disk:
    """One file for each agent, model and format (Semantic). What is put rests in memory until it is flushed.

    ``flush`` writes all live blocks anew and puts the file in place of the old one, which is valid until then; deleted
    and overwritten blocks are left out. It is called by whoever wants the blocks to outlive the process, and by ``put``
    whenever more than ``buffer_bytes`` wait; a crash loses what was put since. A process that dies at any moment leaves
    one of the two files. Two processes that write one file do not mix, but the last one wins: give each its ``agent``.

    ``get`` reads nothing of the file. Whoever looks at a layer of a block reads it, and verifies it: in a prefill the
    link, layer by layer as they are due. A block with a wrong checksum is reported, counted and missing from then on;
    it is never served, but who was given it before is told by a `DamagedError`.

    The least recently used blocks go first when the blocks take more than ``budget_bytes``. ``bits`` 4 or 8 packs them
    by token.
    """

    folder: Path | str | None = None  # None: in the user's cache folder
    agent: str = "shared"  # whose file: 1 to 64 letters, digits, '.', '_' or '-'
    bits: Literal[4, 8] | None = None  # None: as they are
    group: int = 64  # numbers that share a scale and a bias
    budget_bytes: int | None = 8 << 30
    buffer_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        for name in ("budget_bytes", "buffer_bytes"):
            if (getattr(self, name) or 0) < 0:
                raise ConfigError(f"{name}={getattr(self, name)} is negative: use 0 or more")
        self.folder = user_cache_path("keep-agent") / "kv" if self.folder is None else Path(self.folder)
        self.format = None if self.bits is None else PackFormat(self.bits, self.group)
        agent_path(self.folder, self.agent, "any")  # refuses what is no name for a file
        self._model = ""
        self._ledger, self._buffer, self._buffered = Ledger(), {}, 0
        self._pages: Pages | None = None
        self._form: Form | None = None
        self._losing = threading.Lock()
        self._changed = False  # whether the file is not what it would be after a flush
        self._counts = {"hits": 0, "misses": 0, "evicted": 0, "rejected": 0, "corrupt": 0}

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(exact=self.bits is None, persists=True)

    def open(self, model_key: str) -> None:
        """Find what was flushed for this model. Other models' files, and those of another format, stay as they are.

        :raises ConfigError: it was opened for another model
        :raises DataError: a newer version wrote the file
        """
        if self._model not in ("", model_key):
            raise ConfigError(f"storage Disk is in use for model {self._model!r}, so {model_key!r} needs its own")
        if self._model:
            return
        self._model = model_key
        clean(self.folder)
        if not agent_path(self.folder, self.agent, self._key).exists():
            return
        try:
            self._map()
        except CorruptError as error:
            self._counts["corrupt"] += 1
            log.warning("stored memory is lost and will be computed anew, the next flush replaces it: %s", error)
            return
        for entry in self._pages.entries():
            self._ledger.add(entry)
        self._evict()

    def form(self, block: KVBlock) -> KVBlock:
        """The block as it rests here. Raises ConfigError for one that does not go with the others."""
        if self._form is None:
            self._form = Form.of(block, self.format)
        return self._form.shaped(block)

    def put(self, block: KVBlock) -> None:
        """Store a block; one that is bigger than the whole budget is rejected, which the statistics show."""
        if not self._model:
            raise ConfigError("storage Disk was not told which model's blocks these are: call open(model_key) first")
        self.delete(block.identity)
        block = self.form(block)
        if self.budget_bytes is not None and block.nbytes > self.budget_bytes:
            self._counts["rejected"] += 1
            return
        self._buffer[block.identity] = block
        self._buffered += block.nbytes
        self._ledger.add(Entry.of(block))
        self._changed = True
        self._evict()
        if self._buffered > self.buffer_bytes:
            self.flush()

    def get(self, identity: str) -> KVBlock | None:
        block = self._read(identity)
        if block is None:
            self._counts["misses"] += 1
            return None
        self._counts["hits"] += 1
        self._ledger.touch(identity)
        return block

    def get_layer(self, identity: str, layer: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        block = self.get(identity)
        try:
            return None if block is None else (block.k[layer], block.v[layer])
        except DamagedError:
            return None

    def contains(self, identity: str) -> bool:
        return identity in self._ledger

    def sound(self, identity: str) -> bool:
        return self._sound(identity) is not None

    def delete(self, identity: str) -> None:
        """Forget a block; it is out of the file after the next flush."""
        if self._ledger.remove(identity) is not None:
            waiting = self._buffer.pop(identity, None)
            self._buffered -= 0 if waiting is None else waiting.nbytes
            self._changed = True

    def entries(self) -> list[Entry]:
        """What rests here, the least recently used first."""
        return list(self._ledger)

    def flush(self) -> None:
        """Write what has changed: all of the file, or nothing. Takes as much memory as the file.

        :raises CapacityError: the disk is full; file and blocks are as they were
        """
        if not self._changed:
            return
        found = [self._sound(entry.identity) for entry in list(self._ledger)]
        blocks = [block for block in found if block is not None]
        if blocks:
            save_pages(self.folder, self.agent, self._key, self._form, blocks)
            self._map()
        else:
            forget(self.folder, self.agent, self._key)
            self._pages = None
        self._buffer, self._buffered, self._changed = {}, 0, False

    def stats(self) -> dict[str, int]:
        """blocks, bytes (of them ``waiting`` to be flushed), file_bytes; since the beginning: hits, misses, evicted,
        rejected, corrupt (blocks, or a whole file, found damaged)."""
        file_bytes = 0 if self._pages is None else self._pages.nbytes
        held = {"blocks": len(self._ledger), "bytes": self._ledger.bytes}
        return {**held, "waiting": self._buffered, "file_bytes": file_bytes, **self._counts}

    @property
    def _key(self) -> str:
        """What a file holds the blocks of; another model or format has another file."""
        return f"{self._model} in blocks, layout {LAYOUT}, {self.format}"

    def _map(self) -> None:
        self._pages = Pages(open_agent(self.folder, self.agent, self._key))
        self._form = self._pages.form

    def _read(self, identity: str) -> KVBlock | None:
        """A block; what lies in the file is verified when somebody looks at it."""
        if identity not in self._ledger:
            return None
        if identity in self._buffer:
            return self._buffer[identity]
        return self._pages.read(identity, partial(self._lose, self._pages))

    def _sound(self, identity: str) -> KVBlock | None:
        """A block that has been verified as a whole."""
        block = self._read(identity)
        try:
            if block is not None and identity not in self._buffer:
                self._pages.guard(identity, partial(self._lose, self._pages)).check(slice(None))
        except DamagedError:
            return None
        return block

    def _lose(self, pages: Pages, identity: str, error: CorruptError) -> None:
        """Forget a block that is damaged in the file of ``pages``, once, whichever thread has come upon it."""
        with self._losing:
            newer = pages is not self._pages or identity in self._buffer
            if newer or identity not in self._ledger:
                return
            self._counts["corrupt"] += 1
            self.delete(identity)
        log.warning("block %.12s is lost and will be computed anew: %s", identity, error)

    def _evict(self) -> None:
        while self.budget_bytes is not None and self._ledger.bytes > self.budget_bytes:
            self.delete(next(iter(self._ledger)).identity)
            self._counts["evicted"] += 1
