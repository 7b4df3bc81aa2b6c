"""Batched caches: KV caches of several requests, read in passes that compute one row per request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import torch
from torch.nn.utils.rnn import pad_sequence

from memory.engine.attention.kernels import AttentionParams, attention_scores, bias_of, weighted_sum
from memory.engine.attention.quantized_attention import packed_scores, packed_weighted_sum, supports
from memory.kv_cache.dense import WorkingCache
from memory.kv_cache.kv_pool import SENTINEL
from memory.kv_cache.paged import PagedCache
from memory.kv_cache.quantization import Packed

KEYS, VALUES = 0, 1
C = TypeVar("C", bound=WorkingCache)
Run = torch.Tensor | Packed  # (kv_heads, requests, rows, head_dim); packed: (requests, kv_heads, rows, head_dim)


class BatchedCache(ABC, Generic[C]):
    """The KV rows of all ``members``, read and written together in one pass.

    Attention scores form a matrix (requests, keys). A run is a range of columns for consecutive
    requests. Members should be sorted from the longest to the shortest, so that each run has many requests.
    """

    def __init__(self, members: Sequence[C], heads: int) -> None:
        self.members, self._heads = tuple(members), heads
        self._bias: dict[int | None, torch.Tensor] = {}  # by sliding window; (requests, 1, columns)

    def begin(self) -> None:
        """Begin a pass; every member has already reserved a row for it."""
        self._bias.clear()

    def end(self) -> None:
        """Copy the rows of this object back to the members."""

    @property
    def is_current(self) -> bool:
        """Tell whether this object has the members' rows; after a pass over several rows of one member it may not."""
        return True

    @abstractmethod
    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store the rows ``k``, ``v`` (requests, kv_heads, head_dim), keys rotated."""

    @abstractmethod
    def runs(self, layer: int, k_or_v: int, window: int | None) -> Iterator[tuple[int, int, Run]]:
        """Yield the first request, the first column, and the keys or values (``k_or_v``) of every run."""

    @abstractmethod
    def visible(self, window: int | None) -> torch.Tensor:
        """Return the visible columns, (requests, columns) bool."""

    def attend(self, layer: int, query: torch.Tensor, params: AttentionParams) -> torch.Tensor:
        """Compute attention (requests, 1, heads, head_dim) of rotated ``query`` (requests, heads, 1, head_dim)."""
        dtype, q, window = query.dtype, query[:, :, 0] * params.scale, params.window
        if window not in self._bias:
            wide = torch.promote_types(dtype, torch.float32)
            self._bias[window] = bias_of(self.visible(window), wide)[:, None]
        bias = self._bias[window]
        scores = bias.new_zeros(len(self.members), self._heads, bias.shape[-1])
        for first, column, run in self.runs(layer, KEYS, window):
            part = _scores(q[first:], run)
            scores[first : first + part.shape[0], :, column : column + part.shape[2]] = part
        weights = _weights(scores, bias, params)
        out = torch.zeros_like(q, dtype=bias.dtype)
        for first, column, run in self.runs(layer, VALUES, window):
            last, rows = first + (run.shape[0] if isinstance(run, Packed) else run.shape[1]), run.shape[2]
            out[first:last] += _weighted_sum(weights[first:last, :, column : column + rows], run, dtype)
        return out.to(dtype)[:, None]


def _weights(scores: torch.Tensor, bias: torch.Tensor, params: AttentionParams) -> torch.Tensor:
    """Compute the softmax of ``scores`` (requests, heads, columns); sinks, a logit per head, have no values."""
    if params.softcap is not None:
        scores.div_(params.softcap).tanh_().mul_(params.softcap)
    scores += bias
    if params.sinks is None:
        return scores.softmax(-1)
    column = params.sinks.to(scores.dtype)[:, None].expand(*scores.shape[:2], 1)
    return torch.cat([scores, column], -1).softmax(-1)[..., :-1]


def _scores(q: torch.Tensor, run: Run) -> torch.Tensor:
    """Compute scores (requests, heads, rows); scaled ``q`` (n, heads, head_dim) may have more requests than the run."""
    if isinstance(run, Packed):
        if supports(run, q.dtype):
            return packed_scores(q[: run.shape[0]], run)
        run = run.unpack(q.dtype).transpose(0, 1)
    return attention_scores(_by_kv_head(q[: run.shape[1]], run), run).transpose(0, 1).flatten(1, 2)


def _weighted_sum(weights: torch.Tensor, run: Run, dtype: torch.dtype) -> torch.Tensor:
    """Multiply ``weights`` (requests, heads, rows) and the run's values: (requests, heads, head_dim)."""
    if isinstance(run, Packed):
        if supports(run, dtype):
            return packed_weighted_sum(weights, run, dtype)
        run = run.unpack(dtype).transpose(0, 1)
    return weighted_sum(_by_kv_head(weights.to(dtype), run), run).transpose(0, 1).flatten(1, 2)


def _by_kv_head(x: torch.Tensor, run: torch.Tensor) -> torch.Tensor:
    """Reshape (requests, heads, n) to (kv_heads, requests, heads / kv_heads, n)."""
    return x.unflatten(1, (run.shape[0], -1)).transpose(0, 1)


def requests_at(counts: Sequence[int], column: int) -> int:
    """Count the requests of a run that starts at ``column``: those up to the last with more than ``column`` keys."""
    return max(i + 1 for i, count in enumerate(counts) if count > column)


ROWS = 8192  # rows of a run, summed over its requests, that are copied from the pool at once


class BatchedPagedCache(BatchedCache[PagedCache]):
    """Rows of paged caches in one pool; every read of a layer copies them from their slots in the pool."""

    def begin(self) -> None:
        super().begin()
        self._slots: dict[int | None, torch.Tensor] = {}
        self._counts: dict[int | None, list[int]] = {}
        self._new = torch.cat([member.slots[member.length : member.length + 1] for member in self.members])

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        pool = self.members[0].pool
        pool.k[layer].index_copy_(1, self._new, k.transpose(0, 1))
        pool.v[layer].index_copy_(1, self._new, v.transpose(0, 1))

    def runs(self, layer: int, k_or_v: int, window: int | None) -> Iterator[tuple[int, int, Run]]:
        pool = self.members[0].pool
        stored, slots = (pool.k, pool.v)[k_or_v][layer], self._gather(window)
        counts, first = self._counts[window], 0
        while first < slots.shape[1]:
            requests = requests_at(counts, first)
            part = slots[:requests, first : first + -(-ROWS // requests)]
            yield 0, first, stored.index_select(1, part.flatten()).unflatten(1, part.shape)
            first += part.shape[1]

    def visible(self, window: int | None) -> torch.Tensor:
        slots = self._gather(window)
        counts = torch.tensor(self._counts[window], device=slots.device)
        return torch.arange(slots.shape[1], device=slots.device) < counts[:, None]

    def _gather(self, window: int | None) -> torch.Tensor:
        """Return slots (requests, columns) of the visible rows, padded with `SENTINEL`."""
        if window not in self._slots:
            slots = [_visible_slots(member, window) for member in self.members]
            self._slots[window] = pad_sequence(slots, batch_first=True, padding_value=SENTINEL)
            self._counts[window] = [part.numel() for part in slots]
        return self._slots[window]


def _visible_slots(member: PagedCache, window: int | None) -> torch.Tensor:
    slots = member.slots[: member.length + 1]
    if window is None:
        return slots
    return slots[int(torch.searchsorted(member.positions, member.next_position - window, right=True)) :]
