"""Disk storage: KV blocks in a file that outlives the process; it is mapped, and verified layer by layer when read."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from platformdirs import user_cache_path

from keep_agent.errors import ConfigError, CorruptError
from memory.files.agent_files import agent_path, forget, open_agent
from memory.files.atomic import remove_temp
from memory.kv_cache.block import Entry, KVBlock
from memory.kv_cache.block_store import BlockStore
from memory.kv_cache.packed_rows import DamagedError
from memory.kv_cache.quantization import PackFormat
from memory.stages import Capabilities
from memory.storage.block_pages import PageFormat, Pages, save_pages

log = logging.getLogger(__name__)

LAYOUT = 2  # version of the file's layout: add 1 with every change of the layout


@dataclass
class Disk(BlockStore):
    """One file for each agent, model and format. New blocks wait in memory until they are flushed.

    ``flush`` writes all blocks to a new file that replaces the old one, which is valid until then. ``put`` flushes when
    more than ``buffer_bytes`` wait; a crash loses the blocks put since the last flush. If two processes write one file,
    the last write replaces the other's blocks: give each process its own ``agent``.

    A layer of a block is read and verified when it is sliced: in a prefill, when it is transferred to the device. A
    block with a wrong checksum is logged, counted and deleted. If `get` has already returned the block, slicing it
    raises `DamagedError`.

    The least recently used blocks are evicted when the blocks take more than ``budget_bytes``. With ``bits`` 4 or 8,
    blocks are packed by token.
    """

    folder: Path | str | None = None  # None: in the user's cache folder
    agent: str = "shared"  # owner of the file: 1 to 64 letters, digits, '.', '_' or '-'
    bits: Literal[4, 8] | None = None  # None: unpacked
    group: int = 64  # packed numbers that share a scale and a bias
    budget_bytes: int | None = 8 << 30
    buffer_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.buffer_bytes or 0) < 0:
            raise ConfigError(f"buffer_bytes={self.buffer_bytes} is negative: use 0 or more")
        self.folder = user_cache_path("keep-agent") / "kv" if self.folder is None else Path(self.folder)
        self.format = None if self.bits is None else PackFormat(self.bits, self.group)
        agent_path(self.folder, self.agent, "any")  # raises for an unsafe name
        self._model = ""
        self._waiting = 0  # bytes of the blocks in memory
        self._pages: Pages | None = None
        self._page_format: PageFormat | None = None
        self._loss_lock = threading.Lock()
        self._counts["corrupt"] = 0

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(exact=self.bits is None, persists=True)

    def open(self, model_key: str) -> None:
        """Find the blocks flushed for this model. Files of other models and formats stay unchanged.

        :raises ConfigError: the storage was already opened for another model
        :raises DataError: a newer version wrote the file
        """
        if self._model not in ("", model_key):
            raise ConfigError(f"this Disk is in use for model {self._model!r}: make another for {model_key!r}")
        if self._model:
            return
        self._model = model_key
        remove_temp(self.folder)
        if not agent_path(self.folder, self.agent, self._key).exists():
            return
        try:
            self._map()
        except CorruptError as error:
            self._counts["corrupt"] += 1
            log.warning("the stored blocks are lost and will be computed again; a flush replaces them: %s", error)
            return
        for entry in self._pages.entries():
            self.ledger.add(entry)
        self._evict()

    def stored_form(self, block: KVBlock) -> KVBlock:
        """Return the block as it is stored. Raises ConfigError if its shape or format differs from the file's."""
        if self._page_format is None:
            self._page_format = PageFormat.of(block, self.format)
        return self._page_format.convert(block)

    def put(self, block: KVBlock) -> None:
        if not self._model:
            raise ConfigError("storage Disk has no model yet: call open(model_key) first")
        super().put(block)
        if self._waiting > self.buffer_bytes:
            self.flush()

    def verify(self, identity: str) -> bool:
        return self._verified(identity) is not None

    def delete(self, identity: str) -> None:
        """Delete a block; the next flush removes it from the file."""
        if identity in self._blocks:
            self._waiting -= self._blocks[identity].nbytes
        super().delete(identity)

    def flush(self) -> None:
        """Write the whole file if blocks have changed. Needs as much memory as the file has bytes.

        :raises CapacityError: the disk is full; file and blocks are unchanged
        """
        if not self._blocks and len(self.ledger) == (0 if self._pages is None else len(self._pages)):
            return  # the file has exactly the blocks of the ledger
        stored = [self._verified(entry.key) for entry in list(self.ledger)]
        blocks = [block for block in stored if block is not None]
        if blocks:
            save_pages(self.folder, self.agent, self._key, self._page_format, blocks)
            self._map()
        else:
            forget(self.folder, self.agent, self._key)
            self._pages = None
        self._blocks, self._waiting = {}, 0

    def stats(self) -> dict[str, int]:
        """Add to the stats of `BlockStore`: corrupt blocks, bytes ``waiting`` for a flush, and bytes of the file."""
        file_bytes = 0 if self._pages is None else self._pages.nbytes
        return super().stats() | {"waiting": self._waiting, "file_bytes": file_bytes}

    @property
    def _key(self) -> str:
        """Key that names the file, different for each model and format."""
        return f"{self._model} in blocks, layout {LAYOUT}, {self.format}"

    def _map(self) -> None:
        self._pages = Pages(open_agent(self.folder, self.agent, self._key), self._drop_damaged)
        self._page_format = self._pages.page_format

    def _insert(self, block: KVBlock, entry: Entry) -> None:
        super()._insert(block, entry)
        self._waiting += entry.nbytes

    def peek(self, identity: str) -> KVBlock | None:
        """Return a block without counting a hit; rows in the file are verified when they are sliced."""
        if identity in self._blocks or identity not in self.ledger:
            return self._blocks.get(identity)
        return self._pages.read(identity)

    def _verified(self, identity: str) -> KVBlock | None:
        """Verify all rows of a block and return it; None if it is missing or damaged."""
        block = self.peek(identity)
        try:
            if block is not None and identity not in self._blocks:
                self._pages.verifier(identity).check(slice(None))
        except DamagedError:
            return None
        return block

    def _drop_damaged(self, pages: Pages, identity: str, error: CorruptError) -> None:
        """Delete a block that is damaged in the file of ``pages``, and log this once. Any thread may call it."""
        with self._loss_lock:
            replaced = pages is not self._pages or identity in self._blocks
            if replaced or identity not in self.ledger:
                return
            self._counts["corrupt"] += 1
            self.delete(identity)
        log.warning("block %.12s is lost and will be computed again: %s", identity, error)
