"""Tiled attention: keys and values are read tile by tile; packed (quantized) ones are never unpacked as a whole."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from memory.engine.attention.kernels import MaskBlock, attention_scores, weighted_sum
from memory.kv_cache.quantization import Packed

if TYPE_CHECKING:
    from memory.engine.attention.triton_quantized import RunningSums

logger = logging.getLogger(__name__)
# Keys and values of consecutive rows, (requests, kv_heads, n, head_dim) each; packed only where `reads_packed` holds.
Tile = tuple[torch.Tensor, torch.Tensor] | tuple[Packed, Packed]
TILE = 2048  # rows per tile; shorter tiles fit processor caches better, but need more kernel launches


def reads_packed(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Tell whether tiles may be packed: on a GPU that the Triton kernel supports, or in Triton's interpreter.

    Otherwise torch unpacks tiles and works on them, for example if Triton is missing or does not run.
    """
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return (interpreted or device.type == "cuda") and _triton_supports(device, dtype, head_dim)


@lru_cache(64)
def _triton_supports(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    try:
        from memory.engine.attention.triton_quantized import supports

        return supports(device, dtype, head_dim)
    except Exception as error:  # no Triton, no C compiler, a driver that is too old
        logger.warning("packed rows are read with torch, tile by tile, because Triton does not run here: %s", error)
        return False


def unpacked_tiles(k: Packed, v: Packed, dtype: torch.dtype, rows: int = TILE) -> Iterator[Tile]:
    """Yield unpacked tiles of packed keys and values (requests, kv_heads, tokens, head_dim)."""
    for start in range(0, k.tokens, rows):
        stop = min(k.tokens, start + rows)
        yield k.part(start, stop).unpack(dtype), v.part(start, stop).unpack(dtype)


def tiled_attention(
    q: torch.Tensor, tiles: Iterable[Tile], blocks: Sequence[MaskBlock], scale: float, softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Compute attention of ``q`` (requests, heads, rows, head_dim) over the rows of all ``tiles``.

    Returns (requests, rows, heads, head_dim), as `grouped_attention` does, with zeros for query rows without a visible
    key. A block's bias may have a leading request axis.
    """
    q, first = q * scale, 0
    running = [_RunningSoftmax(q[:, :, block.q0 : block.q1]) for block in blocks]
    for k, v in tiles:
        last = first + k.shape[2]
        for block, sums in zip(blocks, running, strict=True):
            for start, stop, column in _pieces(block, first, last):
                part = slice(start - first, stop - first)
                if isinstance(k, Packed):
                    sums.add_packed(k, v, part, block, column, softcap)
                else:
                    sums.add(k[:, :, part], v[:, :, part], block, column, softcap)
        first = last
        del k, v  # free memory before the next tile
    parts = [sums.result(sinks) for sums in running]
    return torch.cat(parts, 1) if len(parts) > 1 else parts[0].contiguous()


def _pieces(block: MaskBlock, first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """Yield the block's key rows ``start:stop`` in ``first:last``, and the ``column`` of ``start`` in its scores."""
    for low, high, column in ((0, block.prefix, 0), (block.k0, block.k1, block.prefix)):
        start, stop = max(low, first), min(high, last)
        if start < stop:
            yield start, stop, column + start - low


class _RunningSoftmax:
    """Running softmax sums of query rows ``q`` (requests, heads, rows, head_dim).

    ``top`` is the largest score of each row, ``mass`` the sum of exp(score - top), ``out`` the weighted sum of values.
    """

    def __init__(self, q: torch.Tensor) -> None:
        self.q = q
        self.out = q.new_zeros(q.shape, dtype=torch.promote_types(q.dtype, torch.float32))
        self.mass = self.out.new_zeros(*q.shape[:3], 1)
        self.top = torch.full_like(self.mass, float("-inf"))
        self._packed: RunningSums | None = None  # sums over packed keys, added at the end

    def add(self, k: torch.Tensor, v: torch.Tensor, block: MaskBlock, column: int, softcap: float | None) -> None:
        """Add ``k``, ``v`` (requests, kv_heads, n, head_dim), which are the block's columns from ``column`` on."""
        count = k.shape[0] * k.shape[1]  # one product per KV head, over the rows of all its query heads
        scores = attention_scores(self.q.reshape(count, -1, self.q.shape[-1]), k.flatten(0, 1))
        scores = scores.reshape(*self.q.shape[:3], -1).to(self.out.dtype)  # (requests, heads, rows, n)
        if softcap is not None:
            scores.div_(softcap).tanh_().mul_(softcap)
        _mask(scores, block, column)
        self._rescale(scores.amax(-1, keepdim=True))
        weights = scores.sub_(_finite(self.top)).exp_()
        self.mass.add_(weights.sum(-1, keepdim=True))
        out = weighted_sum(weights.to(v.dtype).view(count, -1, weights.shape[-1]), v.flatten(0, 1))
        self.out.add_(out.reshape(self.out.shape))

    def add_packed(
        self, k: Packed, v: Packed, rows: slice, block: MaskBlock, column: int, softcap: float | None
    ) -> None:
        if self._packed is None:
            from memory.engine.attention.triton_quantized import RunningSums

            self._packed = RunningSums(self.q, k.kv_heads)
        self._packed.add(k, v, rows.start, rows.stop, block, column, softcap)

    def result(self, sinks: torch.Tensor | None) -> torch.Tensor:
        """Return the output (requests, rows, heads, head_dim); ``sinks``: a further logit per head, without a value."""
        if (packed := self._packed) is not None:  # sums of the Triton kernel, one per split of the keys
            self._rescale(packed.top.amax(0))
            factor = (packed.top - _finite(self.top)).exp_()
            self.mass.add_((packed.mass * factor).sum(0))
            self.out.add_((packed.out * factor).sum(0))
        if sinks is not None:
            logits = sinks.to(self.top.dtype).view(1, -1, 1, 1)
            self._rescale(logits)
            self.mass.add_((logits - self.top).exp())
        mass = self.mass.masked_fill(self.mass == 0, 1)
        return (self.out / mass).to(self.q.dtype).transpose(1, 2)

    def _rescale(self, top: torch.Tensor) -> None:
        """Raise the largest score of each row to at least ``top``, and rescale the sums."""
        before, self.top = self.top, torch.maximum(self.top, top)
        factor = (before - _finite(self.top)).exp_()
        self.mass.mul_(factor)
        self.out.mul_(factor)


def _finite(top: torch.Tensor) -> torch.Tensor:
    """Replace -inf, the value of rows without a visible key so far, by 0."""
    return top.masked_fill(top == float("-inf"), 0)


def _mask(scores: torch.Tensor, block: MaskBlock, column: int) -> None:
    """Add the block's bias to ``scores`` (requests, heads, rows, n) of its columns from ``column`` on."""
    if block.bias is None:
        return
    bias = block.bias if block.bias.dim() == 2 else block.bias[:, None]
    free = block.prefix + block.k1 - block.k0 - bias.shape[-1] - column  # columns before those of the bias
    if free < scores.shape[-1]:
        stop = scores.shape[-1] - free
        scores[..., max(free, 0) :] += bias[..., max(-free, 0) : stop]
