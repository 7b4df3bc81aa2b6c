"""Segments at any offset: an exact prefix, then rows of earlier prompts wherever they stood, new text in between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from itertools import accumulate, chain
from operator import itemgetter

import numpy as np
import torch
from numpy.typing import NDArray

from memory.construction.base import Context, PreparedPrompt, PromptBuilder, storable
from memory.construction.invalidation import Invalidation
from memory.construction.layout import lay_out, uses
from memory.engine.results import PrefillResult
from memory.engine.transformers.engine import Engine
from memory.engine.worker import Priority
from memory.kv_cache.block import KVBlock, identity
from memory.kv_cache.block_lease import BlockLease
from memory.kv_cache.prefix_index import PrefixIndex
from memory.kv_cache.segment_index import segment_hash
from memory.method import MemoryMethod
from memory.reports.timing import StepTimer
from memory.segments.store import SegmentStore
from memory.stages import Layout, Placement, Unit


class AnyOffsetBuilder(PromptBuilder):
    """SparseX's look-up (arXiv 2606.01751, section 4.5): exact prefix, pinned block, earlier rows, else fresh.

    After the prefill, whole blocks of rows before which nothing approximate stands enter the exact prefix index, and
    every unit that no look-up would find is harvested under its virtual hash. Its identity names what it was computed
    behind: where the same stands before it again, its rows are exact too. Repaired rows are not kept: a unit has the
    keys and values of the prompt it was computed in, the first one or the last that computed it anew (``refresh``).
    """

    harvests = True

    def __init__(
        self, engine: Engine, method: MemoryMethod, holder: BlockLease, store: SegmentStore, namespace: str
    ) -> None:
        self._engine, self._method, self._holder, self._namespace = engine, method, holder, namespace
        self._in_use = method.pinned.lease()
        self._lossless = method.storage.capabilities.exact
        self._lost = Invalidation(store)
        self._refresh = method.construction.refresh
        self._index: PrefixIndex | None = None

    def reset(self) -> None:
        self._lost.reset()

    def assemble(
        self, units: Sequence[Unit], query: Sequence[int], context: Context, clock: StepTimer
    ) -> PreparedPrompt:
        starts = [*accumulate((len(unit.token_ids) for unit in units), initial=len(context.ids))]
        names = [self._name(u.token_ids, u.namespace, u.behind) if u.reusable and u.token_ids else "" for u in units]
        prefix, found = self._prefix(units, context)
        ids = np.fromiter(chain(context.ids, *(unit.token_ids for unit in units)), "<u4")
        covered = len(context.ids) + len(found) * self._method.construction.block_size
        anew = self._anew(names, units, starts, ids, covered)
        placed: list[Placement] = []
        missing: dict[str, Placement] = {}
        for name, unit, start in zip(names, units, starts[:-1], strict=True):
            placed += self._place("" if name in anew else name, unit, ids[:start], start - len(context.ids), found)
            if name and (name in anew or not self._knows(name)):
                missing.setdefault(name, Placement(unit, start))
        self._in_use.release()
        return PreparedPrompt(
            lay_out(context.ids, placed, query, True, self._engine.decoder.device),
            uses(placed),
            context.block,
            invalidated=self._lost.count(names, units),
            chain=tuple(prefix),
            found=len(found),
            missing=missing,
        )

    def aside(self) -> AnyOffsetBuilder:
        """Rows that nobody keeps are not computed anew."""
        other = copy(self)
        other._refresh = 0.0
        return other

    def after(self, prompt: PreparedPrompt, result: PrefillResult) -> None:
        """Harvest exact rows into the prefix index, and what was missing into the index of segments."""
        self._lost.settle()
        exact = exact_rows(prompt.layout)
        self._extend_chain(prompt, result, exact)
        if prompt.missing:
            self._keep(prompt.missing, prompt.layout, result, exact)

    def pin(self, token_ids: Sequence[int], extra_key: str, context: Context) -> None:
        """Pin ``token_ids``, encoded behind what units see of the context; plans go first.

        The extra key guards the look-up: the block itself is the same under every key.
        """
        physical = identity(self._engine.model_key, context.seen_ids, token_ids)

        def make() -> KVBlock:
            request = (context.seen_block, token_ids)
            return self._engine.encode([request], [physical], Priority.BACKGROUND)[0]

        self._method.pinned.pin(self._name(token_ids, extra_key), physical, make)

    def unpin(self, token_ids: Sequence[int], extra_key: str) -> None:
        self._method.pinned.unpin(self._name(token_ids, extra_key))

    def is_pinned(self, token_ids: Sequence[int], extra_key: str) -> bool:
        return self._method.pinned.contains(self._name(token_ids, extra_key))

    def _name(self, token_ids: Sequence[int], extra_key: str, behind: Sequence[Sequence[int]] = ()) -> str:
        log = list(chain.from_iterable(behind))
        return segment_hash(self._engine.model_key, token_ids, extra_key or self._namespace, log)

    def _prefix(self, units: Sequence[Unit], context: Context) -> tuple[list[str], list[KVBlock]]:
        """Names of the blocks of an exact prefix and those that are stored; none where the storage is lossy."""
        if not self._lossless:
            return [], []
        if self._index is None:
            size, key = self._method.construction.block_size, self._engine.model_key
            self._index = PrefixIndex(self._holder, size, key, context.ids, self._namespace)
        own = storable(units, self._namespace)
        names = self._index.chain(list(chain.from_iterable(unit.token_ids for unit in own)))
        return names, self._index.match(names)

    def _anew(
        self, names: Sequence[str], units: Sequence[Unit], starts: Sequence[int], ids: NDArray[np.uint32], covered: int
    ) -> set[str]:
        """Units whose rows are approximate, the oldest first, until the share ``refresh`` of the memory is new.

        ``covered``: before this row stands what the exact prefix holds.
        """
        if not self._refresh:
            return set()
        new, old = 0, []
        for name, unit, start in zip(names, units, starts[:-1], strict=True):
            if not name or not self._knows(name):
                new += max(0, start + len(unit.token_ids) - max(start, covered))
            elif start >= covered and not self._method.pinned.contains(name):
                old.append((self._method.virtual.number(name), name, unit, start))
        wanted = self._refresh * (starts[-1] - starts[0])
        anew: set[str] = set()
        for _, name, unit, start in sorted(old, key=itemgetter(0)):
            if new >= wanted:
                break
            if name not in anew and self._method.virtual.physical(name) == self._identity(ids[:start], unit):
                continue  # exact
            anew.add(name)
            new += len(unit.token_ids)
        return anew

    def _place(
        self, name: str, unit: Unit, before: NDArray[np.uint32], offset: int, found: Sequence[KVBlock]
    ) -> Iterator[Placement]:
        """``unit`` behind the tokens ``before``, at memory row ``offset``: rows of the prefix, then all others."""
        size, total = self._method.construction.block_size, len(unit.token_ids)
        covered = min(max(len(found) * size - offset, 0), total)
        stops = {*range(size - offset % size, covered, size), covered, total} - {0}
        row = 0
        for piece in unit.cut(sorted(stops)):
            stop = row + len(piece.token_ids)
            if row < covered:
                number, first = divmod(offset + row, size)
                block = found[number].part(first, first + stop - row)
                yield Placement(piece, len(before) + row, block, hit=True, exact=True)
            else:
                yield self._look_up(name, unit, before, piece, row)
            row = stop

    def _look_up(self, name: str, unit: Unit, before: NDArray[np.uint32], piece: Unit, row: int) -> Placement:
        """The rest of ``unit`` from ``row`` on: those of an earlier prompt, exact if the same stood before them."""
        whole = self._find(name)
        if whole is None:
            return Placement(piece, len(before) + row)
        exact = self._lossless and whole.identity == self._identity(before, unit)
        return Placement(piece, len(before) + row, whole.part(row, whole.tokens), hit=True, exact=exact)

    def _identity(self, before: NDArray[np.uint32], unit: Unit, origin: str = "") -> str:
        """Name of the rows of ``unit`` behind ``before``: all of it computed, or of that ``origin``."""
        namespace = unit.namespace or self._namespace
        return identity(origin or self._engine.model_key, before, unit.token_ids, namespace)

    def _find(self, name: str) -> KVBlock | None:
        """Rows computed elsewhere: pinned rows first, on purpose."""
        if not name:
            return None
        found = self._method.pinned.find(name, self._in_use)
        return self._method.virtual.find(name, self._holder) if found is None else found

    def _knows(self, name: str) -> bool:
        """Would a later prompt find it? Rows of the exact prefix may have lost their name."""
        return name in self._method.virtual or self._method.pinned.contains(name)

    def _extend_chain(self, prompt: PreparedPrompt, result: PrefillResult, exact: int) -> None:
        """Insert the whole blocks of the first ``exact`` memory rows that were not found."""
        size, layout = self._method.construction.block_size, prompt.layout
        names, first = prompt.chain[: exact // size], prompt.found
        if self._index is None or first == len(names):
            return
        rows = torch.arange(layout.context + first * size, layout.context + len(names) * size)
        self._index.insert(names, first, self._engine.harvest(result.cache, rows), exact=True)

    def _keep(self, missing: Mapping[str, Placement], layout: Layout, result: PrefillResult, exact: int) -> None:
        """Store the rows of each missing unit as a block of its own, and index it."""
        rows = torch.cat([torch.arange(p.start, p.stop) for p in missing.values()])
        harvested = self._engine.harvest(result.cache, rows)
        ids = layout.token_ids.cpu().numpy().astype("<u4")  # of which every name hashes what stands before its unit
        origin, first = self._origin(layout), 0
        for name, p in missing.items():
            part = harvested.part(first, first + len(p.unit.token_ids))
            sound = p.stop <= layout.context + exact
            physical = self._identity(ids[: p.start], p.unit, "" if sound else origin)
            replaced = self._method.virtual.physical(name)
            if replaced not in (None, physical):
                self._holder.drop(replaced)
            self._holder.put(KVBlock(physical, part.k.contiguous(), part.v.contiguous()))
            self._method.virtual.insert(name, physical, 0, part.tokens)
            first += part.tokens

    def _origin(self, layout: Layout) -> str:
        """What shaped rows behind approximate ones: all tokens, the blocks among them, and who repaired those."""
        blocks = (f"{p.start} {p.block.identity}" for p in layout.placements if p.block is not None)
        key = "\n".join([self._engine.model_key, repr(self._method.recompute), *blocks])
        return identity(f"harvested {key}", (), layout.token_ids.tolist())


def exact_rows(layout: Layout) -> int:
    """Memory rows from the first on that are exact or fresh, so that nothing approximate stands before them."""
    sound = (layout.exact | layout.fresh)[layout.context : layout.query]
    return int(sound.long().cumprod(0).sum())
