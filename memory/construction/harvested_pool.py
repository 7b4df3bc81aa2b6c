"""Pool of harvested rows: a growing transcript's keys and values, copied from the prompts' caches in the background."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from memory.engine.base import Engine
from memory.kv_cache.block import KVBlock
from memory.kv_cache.block_store import BlockLease, identity
from memory.kv_cache.key_boxes import KeyBoxes, KeyBoxIndex
from memory.kv_cache.packed_rows import DamagedError

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PooledBlock:
    """A block of the pool: tokens ``start:stop`` of the transcript."""

    name: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Harvest:
    """Rows copied after a turn: whole blocks, and a ``tail`` that fills no block. ``tokens``: the transcript so far."""

    tokens: Tokens
    entries: list[PooledBlock]
    blocks: list[KVBlock]
    tail: KVBlock | None
    boxes: KeyBoxes | None


class HarvestPool:
    """A transcript's blocks, oldest first, with an optional ``index`` of the bounding boxes of their keys.

    A block that the storage evicts can no longer be chosen. Without an index every prompt needs all blocks, so the
    blocks after an evicted one are dropped too, and their tokens are computed again.
    """

    def __init__(self, engine: Engine, lease: BlockLease, namespace: str, index: KeyBoxIndex | None) -> None:
        self._engine, self._lease, self._namespace, self._index = engine, lease, namespace, index
        self._pending: tuple[Future[Harvest], Callable[[], Harvest]] | None = None  # a harvest's future and work
        self.blocks: list[PooledBlock] = []
        self.clear()

    def clear(self) -> None:
        """Drop all blocks and the pending harvest."""
        if self._pending is not None:
            self._pending[0].cancel()
        self._pending = None
        self.tokens: Tokens = ()
        self.tail: KVBlock | None = None
        self._capacity: int | None = None  # number of blocks that fit into the storage; None: not known yet
        self._drop_except([])

    @property
    def tail_start(self) -> int:
        """Index of the transcript's first token that is in no whole block."""
        return len(self.tokens) - (0 if self.tail is None else self.tail.tokens)

    def block(self, number: int) -> KVBlock:
        """Read a block; raises DamagedError if the storage has evicted it since `sync`."""
        name = self.blocks[number].name
        block = self._lease.get(name)
        if block is None:
            raise DamagedError(name, f"the block {name[:12]} is no longer stored")
        return block

    def sync(self, transcript: Tokens) -> int:
        """Wait for the last turn's harvest; drop evicted blocks, or all if ``transcript`` begins with other tokens.

        Returns the number of dropped tokens.
        """
        self._collect()
        before = len(self.tokens)
        if transcript[:before] != self.tokens:
            self.clear()
            return before
        stored = [number for number, entry in enumerate(self.blocks) if self._lease.contains(entry.name)]
        self._lease.keep(self.blocks[number].name for number in stored)  # marks all as used, chosen or not
        if len(stored) == len(self.blocks):
            return 0
        if self._index is None:
            stored = [number for place, number in enumerate(stored) if place == number]
            self.tokens, self.tail = self.tokens[: self.blocks[len(stored)].start], None
        total = sum(entry.size for entry in self.blocks)
        self._drop_except(stored)
        return total - sum(entry.size for entry in self.blocks)

    def extend(self, tokens: Tokens, stops: Sequence[int], origin: str, rows: Callable[[], KVBlock]) -> None:
        """Add the tokens from ``tail_start`` on, in the background. Blocks end at ``stops``; later tokens are the tail.

        :param tokens: the whole transcript
        :param origin: hash of all that determines the rows, except their tokens; part of the blocks' names
        :param rows: function that returns the keys and values of the new tokens; called on the engine's worker thread
        """
        edges, name, entries = [self.tail_start, *stops], origin, []
        for start, stop in pairwise([*edges, len(tokens)] if edges[-1] < len(tokens) else edges):
            name = identity(name, (), tokens[start:stop], self._namespace)
            entries.append(PooledBlock(name, start, stop))
        work = partial(self._harvest, tokens, entries, len(stops), rows)
        self._pending = self._engine.in_background(work), work

    def _harvest(self, tokens: Tokens, entries: list[PooledBlock], count: int, rows: Callable[[], KVBlock]) -> Harvest:
        """Cut the rows into blocks, on the worker thread, without changing state that a session reads."""
        block, sizes = rows(), [entry.size for entry in entries]
        parts = zip(entries, block.k.split(sizes, 2), block.v.split(sizes, 2), strict=True)
        blocks = [KVBlock(entry.name, k.contiguous(), v.contiguous()) for entry, k, v in parts]
        boxed = self._index is not None and count > 0
        boxes = KeyBoxes.around([block.k for block in blocks[:count]], self._index.layers) if boxed else None
        tail = blocks[count] if count < len(blocks) else None
        return Harvest(tokens, entries[:count], blocks[:count], tail, boxes)

    def _collect(self) -> None:
        """Make the pending harvest part of the pool."""
        if self._pending is None:
            return
        (future, work), self._pending = self._pending, None
        # a harvest still in the queue runs now, with a prompt's priority: in the background it might never run
        harvest = self._engine.run(work) if future.cancel() else future.result()
        self.tokens, self.tail = harvest.tokens, harvest.tail
        for entry, block in zip(harvest.entries, harvest.blocks, strict=True):
            if not self._store(block):
                self.tokens, self.tail = harvest.tokens[: entry.start], None
                return
            self.blocks.append(entry)
        if self._index is not None and harvest.boxes is not None:
            self._index.append(harvest.boxes)

    def _store(self, block: KVBlock) -> bool:
        """Store a block; without an index, drop it if storing it evicted an earlier block. Tells whether it stays."""
        if self._index is None and len(self.blocks) == self._capacity:
            return False
        self._lease.put(block)
        if self._index is not None or all(self._lease.contains(entry.name) for entry in self.blocks):
            return True
        self._capacity = len(self.blocks)
        self._lease.drop(block.identity)
        return False

    def _drop_except(self, numbers: Sequence[int]) -> None:
        """Drop all blocks except ``numbers``, also from the storage, because no later prompt looks up a dropped one."""
        names = {entry.name for entry in self.blocks}
        self.blocks = [self.blocks[number] for number in numbers]
        for name in names - {entry.name for entry in self.blocks}:
            self._lease.drop(name)
        if self._index is not None:
            self._index.keep(numbers)
