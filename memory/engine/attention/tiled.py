"""Attention over keys and values that arrive tile by tile, so that packed ones are never whole in full precision."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from memory.engine.attention.kernels import Block, mix, scores_of
from memory.kv_cache.quantization import Packed

if TYPE_CHECKING:
    from memory.engine.attention.triton_quantized import Sums

logger = logging.getLogger(__name__)
# Keys and values of consecutive rows, (requests, kv_heads, n, head_dim) each; packed only where `reads_packed` holds.
Tile = tuple[torch.Tensor, torch.Tensor] | tuple[Packed, Packed]
TILE = 2048  # rows; shorter ones pay more for starting operations than they gain in caches


def reads_packed(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether tiles may come packed: on a GPU that the Triton kernel serves, or in Triton's interpreter.

    Elsewhere, also where Triton is missing or does not run, torch works on unpacked tiles.
    """
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return (interpreted or device.type == "cuda") and _triton_serves(device, dtype, head_dim)


@lru_cache(64)
def _triton_serves(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    try:
        from memory.engine.attention.triton_quantized import serves

        return serves(device, dtype, head_dim)
    except Exception as error:  # no Triton, no C compiler, a driver that is too old
        logger.warning("packed rows are read with torch, tile by tile, for Triton does not run here: %s", error)
        return False


def unpacked_tiles(k: Packed, v: Packed, dtype: torch.dtype, rows: int = TILE) -> Iterator[Tile]:
    """Tiles of packed keys and values (requests, kv_heads, tokens, head_dim), each made when it is asked for."""
    for start in range(0, k.tokens, rows):
        stop = min(k.tokens, start + rows)
        yield k.part(start, stop).unpack(dtype), v.part(start, stop).unpack(dtype)


def tiled_attention(
    q: torch.Tensor,
    tiles: Iterable[Tile],
    blocks: Sequence[Block],
    scale: float,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of ``q`` (requests, heads, rows, head_dim) over the rows of ``tiles``, joined.

    Returns ``(requests, rows, heads, head_dim)``, as `grouped_attention` does. A block's bias may have a request axis
    in front. Query rows that see no key give zeros.
    """
    q, first = q * scale, 0
    running = [_Running(q[:, :, block.q0 : block.q1]) for block in blocks]
    for k, v in tiles:
        last = first + k.shape[2]
        for block, rows in zip(blocks, running, strict=True):
            for start, stop, column in _pieces(block, first, last):
                rows_of_tile = slice(start - first, stop - first)
                if isinstance(k, Packed):
                    rows.see_packed(k, v, rows_of_tile, block, column, softcap)
                else:
                    rows.see(k[:, :, rows_of_tile], v[:, :, rows_of_tile], block, column, softcap)
        first = last
        del k, v  # or they would live on while the next tile is made
    parts = [rows.result(sinks) for rows in running]
    return torch.cat(parts, 1) if len(parts) > 1 else parts[0].contiguous()


def _pieces(block: Block, first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """Cut the block to key rows ``first:last``: first row, last row, and the block's column of the first."""
    for low, high, column in ((0, block.prefix, 0), (block.k0, block.k1, block.prefix)):
        start, stop = max(low, first), min(high, last)
        if start < stop:
            yield start, stop, column + start - low


class _Running:
    """Softmax and output of query rows ``q`` (requests, heads, rows, head_dim) over the keys seen so far.

    ``top`` is the largest score of each row, ``mass`` the sum of exp(score - top), ``out`` that of its values.
    """

    def __init__(self, q: torch.Tensor) -> None:
        self.q = q
        self.out = q.new_zeros(q.shape, dtype=torch.promote_types(q.dtype, torch.float32))
        self.mass = self.out.new_zeros(*q.shape[:3], 1)
        self.top = torch.full_like(self.mass, float("-inf"))
        self._packed: Sums | None = None  # over packed keys, joined at the end

    def see(self, k: torch.Tensor, v: torch.Tensor, block: Block, column: int, softcap: float | None) -> None:
        """Extend the sums by ``k``, ``v`` (requests, kv_heads, n, head_dim), the block's columns from ``column`` on."""
        scores = self._scores(k, softcap)
        _mask(scores, block, column)
        factor = self._rise(scores.amax(-1, keepdim=True))
        weights = scores.sub_(_finite(self.top)).exp_()
        self.mass.mul_(factor).add_(weights.sum(-1, keepdim=True))
        folded = weights.to(v.dtype).view(*self._folded(v), -1)
        out = mix(folded, v.flatten(0, 1))
        self.out.mul_(factor).add_(out.reshape(self.out.shape))

    def see_packed(
        self, k: Packed, v: Packed, rows_of_tile: slice, block: Block, column: int, softcap: float | None
    ) -> None:
        """Extend the sums by ``rows_of_tile`` of packed ``k``, ``v``."""
        if self._packed is None:
            from memory.engine.attention.triton_quantized import Sums

            self._packed = Sums(self.q, k.kv_heads)
        self._packed.see(k, v, rows_of_tile.start, rows_of_tile.stop, block, column, softcap)

    def _join(self, sums: Sums) -> None:
        """Add the sums over packed keys, which come in several splits."""
        factor = self._rise(sums.top.amax(0))
        worth = (sums.top - _finite(self.top)).exp_()
        self.mass.mul_(factor).add_((sums.mass * worth).sum(0))
        self.out.mul_(factor).add_((sums.out * worth).sum(0))

    def result(self, sinks: torch.Tensor | None) -> torch.Tensor:
        """Output (requests, rows, heads, head_dim); ``sinks``, one logit per head, take mass and give nothing."""
        if self._packed is not None:
            self._join(self._packed)
        if sinks is not None:
            logits = sinks.to(self.top.dtype).view(1, -1, 1, 1)
            factor = self._rise(logits)
            self.out.mul_(factor)
            self.mass.mul_(factor).add_((logits - self.top).exp())
        mass = self.mass.masked_fill(self.mass == 0, 1)
        return (self.out / mass).to(self.q.dtype).transpose(1, 2)

    def _folded(self, x: torch.Tensor) -> tuple[int, int]:
        """Batch and rows of a product in which the query heads of one KV head of ``x`` are rows."""
        products = x.shape[0] * x.shape[1]
        return products, self.mass.numel() // products

    def _scores(self, k: torch.Tensor, softcap: float | None) -> torch.Tensor:
        """(requests, heads, rows, keys), in the precision of the sums."""
        folded = self.q.reshape(*self._folded(k), -1)
        scores = scores_of(folded, k.flatten(0, 1)).reshape(*self.q.shape[:3], -1).to(self.out.dtype)
        return scores if softcap is None else scores.div_(softcap).tanh_().mul_(softcap)

    def _rise(self, top: torch.Tensor) -> torch.Tensor:
        """Raise the largest score to ``top``; returns the factor that rescales the sums so far."""
        before, self.top = self.top, torch.maximum(self.top, top)
        return (before - _finite(self.top)).exp_()


def _finite(top: torch.Tensor) -> torch.Tensor:
    """0 for rows that have seen no key yet: -inf less -inf would be no number."""
    return top.masked_fill(top == float("-inf"), 0)


def _mask(scores: torch.Tensor, block: Block, column: int) -> None:
    """Add the block's bias to ``scores`` (requests, heads, rows, n) of its columns from ``column`` on."""
    if block.bias is None:
        return
    bias = block.bias if block.bias.dim() == 2 else block.bias[:, None]
    free = block.prefix + block.k1 - block.k0 - bias.shape[-1] - column  # columns from here on without a bias
    if free < scores.shape[-1]:
        stop = scores.shape[-1] - free
        scores[..., max(free, 0) :] += bias[..., max(-free, 0) : stop]
