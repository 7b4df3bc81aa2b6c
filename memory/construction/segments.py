"""Any-offset construction (SparseX): segments are found by their own tokens, at any position of an earlier prompt.

A prompt begins with an exact prefix (rows as in a full prefill). Rows of earlier prompts and new text follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from operator import itemgetter
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from keep_agent.errors import ConfigError
from memory.construction.base import Context, PreparedPrompt, PromptBuilder, SessionResources, storable_units
from memory.construction.isolated import Invalidation
from memory.construction.prefix import SingleUnitMemory, extend_chain
from memory.engine.base import PrefillResult, Priority
from memory.kv_cache.block import KVBlock
from memory.kv_cache.block_store import identity
from memory.kv_cache.prefix_index import PrefixIndex
from memory.kv_cache.segment_index import segment_hash
from memory.prompt.layout import Layout, Placement, Unit, lay_out
from memory.prompt.report import StepTimer
from memory.segments.segment import Segment
from memory.segments.store import SegmentStore
from memory.stages import Capabilities


@dataclass(frozen=True)
class Segments(SingleUnitMemory):
    """Construction by SparseX's segment cache (arXiv 2606.01751, 3.1 and 4.5): earlier prompts' rows at any offset.

    No segment is encoded alone: its rows are copied from the first prompt that computed them (harvested). In a prompt
    with other tokens before the segment these rows are approximate. An exact prefix is found by a hash chain over
    blocks of ``block_size`` tokens.

    ``refresh`` is the minimum share of a prompt's memory that is computed; the paper's value is 0. If new segments are
    a smaller share, the segments with the oldest rows are computed again, and the new rows replace the old.
    """

    refresh: float = 0.0
    capabilities: ClassVar[Capabilities] = Capabilities(exact=False, moves_blocks=True, harvests=True, pins=True)
    layouts: ClassVar[tuple[str, ...]] = ("memory",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.refresh <= 1:
            raise ConfigError(f"refresh={self.refresh} is not a share: use 0 to 1")

    def plan(self, segments: Sequence[Segment], store: SegmentStore, step: int) -> list[Unit]:
        return [Unit.of("segment", [(segment.id, store.tokens(segment.id))]) for segment in segments]

    def builder(self, session: SessionResources) -> AnyOffsetBuilder:
        return AnyOffsetBuilder(session, self)


class AnyOffsetBuilder(PromptBuilder):
    """Builder by SparseX's look-up (arXiv 2606.01751, section 4.5): exact prefix, pinned blocks, earlier prompts' rows.

    After the prefill, whole blocks with no approximate row in or before them enter the exact prefix index. The rows of
    each unit (segment or group) that no look-up finds are copied from the cache and stored under the unit's segment
    hash. A block's identity includes the tokens before the unit: reused after equal tokens, its rows are exact.
    Repaired rows are not stored: a unit keeps the rows of the prompt that computed it first, or refreshed it last.
    """

    harvests = True

    def __init__(
        self, session: SessionResources, construction: Segments, owner: AnyOffsetBuilder | None = None
    ) -> None:
        """:param owner: builder whose prefix index a temporary builder reads; None: this builder is not temporary"""
        self._session, self._construction = session, construction
        self._engine, self._lease, self._namespace = session.engine, session.lease, session.namespace
        method = session.method
        self._recompute, self._pinned, self._segments = method.recompute, method.pinned, method.segment_index
        self._in_use = method.pinned.lease()
        self._lossless = method.storage.capabilities.exact
        self._invalidation = Invalidation(session.store) if owner is None else owner._invalidation
        self._size, self._refresh = construction.block_size, construction.refresh
        self._index: PrefixIndex | None = None if owner is None else owner._index

    def reset(self) -> None:
        self._invalidation.reset()

    def temporary(self) -> AnyOffsetBuilder:
        """Return a builder that refreshes nothing, because its rows are not kept."""
        return AnyOffsetBuilder(self._session, replace(self._construction, refresh=0.0), self)

    def build(self, units: Sequence[Unit], query: Sequence[int], context: Context, timer: StepTimer) -> PreparedPrompt:
        starts = [*accumulate((len(unit.token_ids) for unit in units), initial=len(context.ids))]
        names = [self._name(u.token_ids, u.namespace, u.preceding) if u.reusable and u.token_ids else "" for u in units]
        chain_names, prefix = self._prefix(units, context)
        ids = np.fromiter(chain(context.ids, *(unit.token_ids for unit in units)), "<u4")
        covered = len(context.ids) + len(prefix) * self._size
        refreshed = self._refreshed(names, units, starts, ids, covered)
        placements: list[Placement] = []
        missing: dict[str, Placement] = {}
        for name, unit, start in zip(names, units, starts[:-1], strict=True):
            findable = "" if name in refreshed else name
            placements += self._place(findable, unit, ids[:start], start - len(context.ids), prefix)
            if name and (name in refreshed or not self._is_known(name)):
                missing.setdefault(name, Placement(unit, start))
        self._in_use.release()
        return PreparedPrompt(
            lay_out(context.ids, placements, query, True, self._engine.device),
            context.block,
            invalidated=self._invalidation.count(names, units),
            chain=tuple(chain_names),
            stored=len(prefix),
            missing=missing,
        )

    def store_rows(self, prompt: PreparedPrompt, result: PrefillResult) -> None:
        """Harvest exact rows into the prefix index, and missing units into the segment index."""
        self._invalidation.commit()
        exact = exact_rows(prompt.layout)
        names = prompt.chain[: exact // self._size]
        extend_chain(self._index, self._engine, prompt, result, names, exact=True)
        if prompt.missing:
            self._store_units(prompt.missing, prompt.layout, result, exact)

    def pin(self, token_ids: Sequence[int], extra_key: str, context: Context) -> None:
        """Pin ``token_ids``, encoded in the background as rows after the part of the context that units attend to.

        Only the look-up depends on the extra key: the block is the same under every key.
        """
        physical = identity(self._engine.model_key, context.unit_context_ids, token_ids)

        def make() -> KVBlock:
            request = (context.unit_context, token_ids)
            return self._engine.encode([request], [physical], Priority.BACKGROUND)[0]

        self._pinned.pin(self._name(token_ids, extra_key), physical, make)

    def unpin(self, token_ids: Sequence[int], extra_key: str) -> None:
        self._pinned.unpin(self._name(token_ids, extra_key))

    def is_pinned(self, token_ids: Sequence[int], extra_key: str) -> bool:
        return self._pinned.contains(self._name(token_ids, extra_key))

    def _name(self, token_ids: Sequence[int], extra_key: str, log: Sequence[Sequence[int]] = ()) -> str:
        before = list(chain.from_iterable(log))
        return segment_hash(self._engine.model_key, token_ids, extra_key or self._namespace, before)

    def _prefix(self, units: Sequence[Unit], context: Context) -> tuple[list[str], list[KVBlock]]:
        """Name the blocks of a possible exact prefix, and read the stored ones; no names if the storage is lossy."""
        if not self._lossless:
            return [], []
        if self._index is None:
            key = self._engine.model_key
            self._index = PrefixIndex(self._lease, self._size, key, context.ids, self._namespace)
        leading = storable_units(units, self._namespace)
        names = self._index.chain(list(chain.from_iterable(unit.token_ids for unit in leading)))
        return names, self._index.match(names)

    def _refreshed(
        self, names: Sequence[str], units: Sequence[Unit], starts: Sequence[int], ids: NDArray[np.uint32], covered: int
    ) -> set[str]:
        """Name the units to compute again, oldest rows first, until the share ``refresh`` of the memory is computed.

        :param covered: the first row after the exact prefix
        """
        if not self._refresh:
            return set()
        new, old = 0, []
        for name, unit, start in zip(names, units, starts[:-1], strict=True):
            if not name or not self._is_known(name):
                new += max(0, start + len(unit.token_ids) - max(start, covered))
            elif start >= covered and not self._pinned.contains(name):
                old.append((self._segments.number(name), name, unit, start))
        least = self._refresh * (starts[-1] - starts[0])
        refreshed: set[str] = set()
        for _, name, unit, start in sorted(old, key=itemgetter(0)):
            if new >= least:
                break
            if name not in refreshed and self._segments.physical(name) == self._identity(ids[:start], unit):
                continue  # its rows are exact in this prompt
            refreshed.add(name)
            new += len(unit.token_ids)
        return refreshed

    def _place(
        self, name: str, unit: Unit, before: NDArray[np.uint32], offset: int, prefix: Sequence[KVBlock]
    ) -> Iterator[Placement]:
        """Place ``unit`` after the tokens ``before``, at memory row ``offset``; ``prefix`` may cover its first rows."""
        size, total = self._size, len(unit.token_ids)
        covered = min(max(len(prefix) * size - offset, 0), total)
        stops = {*range(size - offset % size, covered, size), covered, total} - {0}
        row = 0
        for piece in unit.cut(sorted(stops)):
            stop = row + len(piece.token_ids)
            if row < covered:
                number, first = divmod(offset + row, size)
                block = prefix[number].part(first, first + stop - row)
                yield Placement(piece, len(before) + row, block, hit=True, exact=True)
            else:
                yield self._look_up(name, unit, before, piece, row)
            row = stop

    def _look_up(self, name: str, unit: Unit, before: NDArray[np.uint32], piece: Unit, row: int) -> Placement:
        """Place ``piece`` (``unit`` from ``row`` on) with stored rows, if any; exact if computed after equal tokens."""
        whole = self._pinned.find(name, self._in_use) if name else None  # pinned rows first
        if whole is None and name:
            whole = self._segments.find(name, self._lease)
        if whole is None:
            return Placement(piece, len(before) + row)
        exact = self._lossless and whole.identity == self._identity(before, unit)
        return Placement(piece, len(before) + row, whole.part(row, whole.tokens), hit=True, exact=exact)

    def _identity(self, before: NDArray[np.uint32], unit: Unit, origin: str = "") -> str:
        """Return the identity of rows of ``unit`` after ``before``; ``origin``: from `_origin`, "" for exact rows."""
        return identity(origin or self._engine.model_key, before, unit.token_ids, unit.namespace or self._namespace)

    def _is_known(self, name: str) -> bool:
        """Tell whether ``name`` is pinned or in the segment index; a unit in the exact prefix may be in neither."""
        return name in self._segments or self._pinned.contains(name)

    def _store_units(self, missing: Mapping[str, Placement], layout: Layout, result: PrefillResult, exact: int) -> None:
        """Store the rows of each missing unit as a block of its own, and index it."""
        rows = torch.cat([torch.arange(p.start, p.stop) for p in missing.values()])
        harvested = self._engine.harvest(result.cache, rows)
        ids = layout.token_ids.cpu().numpy().astype("<u4")  # `_identity` hashes slices of this array
        origin, first = self._origin(layout), 0
        for name, p in missing.items():
            part = harvested.part(first, first + len(p.unit.token_ids))
            sound = p.stop <= layout.context + exact
            physical = self._identity(ids[: p.start], p.unit, "" if sound else origin)
            replaced = self._segments.physical(name)
            if replaced not in (None, physical):
                self._lease.drop(replaced)
            self._lease.put(KVBlock(physical, part.k.contiguous(), part.v.contiguous()))
            self._segments.insert(name, physical, 0, part.tokens)
            first += part.tokens

    def _origin(self, layout: Layout) -> str:
        """Return a hash of all that determines rows that follow approximate rows: tokens, blocks, recompute stage."""
        blocks = (f"{p.start} {p.block.identity}" for p in layout.placements if p.block is not None)
        key = "\n".join([self._engine.model_key, repr(self._recompute), *blocks])
        return identity(f"harvested {key}", (), layout.token_ids.tolist())


def exact_rows(layout: Layout) -> int:
    """Count the memory rows before the first approximate row; fresh rows after exact ones are exact once computed."""
    sound = (layout.exact | layout.fresh)[layout.context : layout.query]
    return int(sound.long().cumprod(0).sum())
