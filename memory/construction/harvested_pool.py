"""The pool of harvested rows: blocks of a transcript that only grows, appended in the background."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from memory.engine.transformers.engine import Engine
from memory.kv_cache.block import KVBlock, identity
from memory.kv_cache.block_lease import BlockLease
from memory.kv_cache.key_boxes import KeyBoxes, KeyBoxIndex
from memory.kv_cache.mapped_rows import DamagedError

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PooledBlock:
    """A block of the pool: tokens ``start:stop`` of the transcript."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Harvest:
    """What one turn adds: all tokens told by then, whole blocks, and the rows behind them that make up none yet."""

    told: Tokens
    kept: list[PooledBlock]
    blocks: list[KVBlock]
    tail: KVBlock | None
    boxes: KeyBoxes | None


class HarvestPool:
    """Blocks in order of time, with their ``index`` of boxes where there is one.

    The storage may drop a block. It can be chosen no more then; without an index, where all blocks have to be in, the
    rows behind it are given up too, so that they are computed anew.
    """

    def __init__(self, engine: Engine, holder: BlockLease, namespace: str, index: KeyBoxIndex | None) -> None:
        self._engine, self._holder, self._namespace, self._index = engine, holder, namespace, index
        self._coming: tuple[Future[Harvest], Callable[[], Harvest]] | None = None  # and the work it is of
        self.kept: list[PooledBlock] = []
        self.clear()

    def clear(self) -> None:
        """Forget everything; a harvest under way comes to nothing, for only ``settle`` makes it part of the pool."""
        if self._coming is not None:
            self._coming[0].cancel()
        self._coming = None
        self.told: Tokens = ()
        self.tail: KVBlock | None = None
        self._room: int | None = None  # blocks the storage can hold, once it is known
        self._keep([])

    @property
    def begin(self) -> int:
        """First token of the transcript that is in no whole block."""
        return len(self.told) - (0 if self.tail is None else self.tail.tokens)

    def block(self, number: int) -> KVBlock:
        """The block of a number; ``follow`` has seen to it that the storage holds it.

        Raises DamagedError if the storage has let go of it since.
        """
        name = self.kept[number].name
        if (found := self._holder.get(name)) is None:
            raise DamagedError(name, f"the block {name[:12]} is no longer stored")
        return found

    def follow(self, transcript: Tokens) -> int:
        """Wait for what the last turn added; give up what does not belong to ``transcript``, or is lost.

        Returns the tokens that were given up.
        """
        self._settle()
        before = len(self.told)
        if transcript[:before] != self.told:
            self.clear()
            return before
        there = [number for number, kept in enumerate(self.kept) if self._holder.contains(kept.name)]
        self._holder.keep(self.kept[number].name for number in there)  # nobody tells it again what stands in them
        if len(there) == len(self.kept):
            return 0
        if self._index is None:
            there = [number for place, number in enumerate(there) if place == number]
            self.told, self.tail = self.told[: self.kept[len(there)].start], None
        lost = sum(kept.stop - kept.start for kept in self.kept)
        self._keep(there)
        return lost - sum(kept.stop - kept.start for kept in self.kept)

    def grow(self, told: Tokens, stops: Sequence[int], seen: str, rows: Callable[[], KVBlock]) -> None:
        """Add the transcript from ``begin`` on in the background, in blocks that end at ``stops``.

        :param told: the whole transcript
        :param seen: what decided how the rows were computed, their tokens apart: a part of the blocks' names
        :param rows: gives their keys and values; called on the engine's worker
        """
        edges, name, kept = [self.begin, *stops], seen, []
        for start, stop in pairwise([*edges, len(told)] if edges[-1] < len(told) else edges):
            name = identity(name, (), told[start:stop], self._namespace)
            kept.append(PooledBlock(name, start, stop))
        work = partial(self._harvest, told, kept, len(stops), rows)
        self._coming = self._engine.later(work), work

    def _harvest(self, told: Tokens, kept: list[PooledBlock], whole: int, rows: Callable[[], KVBlock]) -> Harvest:
        """On the worker: it touches nothing that a session reads."""
        found, sizes = rows(), [k.stop - k.start for k in kept]
        parts = zip(kept, found.k.split(sizes, 2), found.v.split(sizes, 2), strict=True)
        blocks = [KVBlock(one.name, k.contiguous(), v.contiguous()) for one, k, v in parts]
        boxed = self._index is not None and whole > 0
        boxes = KeyBoxes.around([block.k for block in blocks[:whole]], self._index.layers) if boxed else None
        tail = blocks[whole] if whole < len(blocks) else None
        return Harvest(told, kept[:whole], blocks[:whole], tail, boxes)

    def _settle(self) -> None:
        if self._coming is None:
            return
        (coming, work), self._coming = self._coming, None
        # what has not begun is done now: plans would go before it, and the worker would wait for itself
        harvest = self._engine.run(work) if coming.cancel() else coming.result()
        self.told, self.tail = harvest.told, harvest.tail
        for kept, block in zip(harvest.kept, harvest.blocks, strict=True):
            if not self._store(block):
                self.told, self.tail = harvest.told[: kept.start], None
                return
            self.kept.append(kept)
        if self._index is not None and harvest.boxes is not None:
            self._index.append(harvest.boxes)

    def _store(self, block: KVBlock) -> bool:
        """Put away one block more. Without an index it is no use if a full storage drops one before it in return."""
        if self._index is None and len(self.kept) == self._room:
            return False
        self._holder.put(block)
        if self._index is not None or all(self._holder.contains(kept.name) for kept in self.kept):
            return True
        self._room = len(self.kept)
        self._holder.drop(block.identity)
        return False

    def _keep(self, numbers: Sequence[int]) -> None:
        """Let go of all other blocks: nothing looks them up by their names."""
        names = {kept.name for kept in self.kept}
        self.kept = [self.kept[number] for number in numbers]
        for name in names - {kept.name for kept in self.kept}:
            self._holder.drop(name)
        if self._index is not None:
            self._index.keep(numbers)
