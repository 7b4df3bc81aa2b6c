"""Attention of one query row per request over packed (quantized) keys and values, computed on their integer codes.

A packed number is scale * code + bias, with one scale and bias per group of numbers. The dot product of x and a group
is therefore scale * dot(x, codes) + bias * sum(x). Every dtype holds the codes exactly. Unpacking the numbers would
take most of a decoding step's time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch.nn import functional

from memory.kv_cache.quantization import Grid, Packed


def supports(packed: Packed, dtype: torch.dtype) -> bool:
    """Tell whether this module supports ``packed``: its groups lie within a token, and ``dtype`` is not float64."""
    return packed.grid.span == 1 and dtype != torch.float64


@dataclass(frozen=True, slots=True)
class _HeadParts:
    """Parts of query heads: ``count`` per head, one for each quantization group that overlaps the head's KV head.

    ``groups`` (heads * count,) are the groups' numbers. ``mask`` (heads * count, width) is 1 at numbers that lie in
    both the group and the KV head of the part, else 0.
    """

    count: int
    groups: torch.Tensor
    mask: torch.Tensor

    def spread(self, x: torch.Tensor) -> torch.Tensor:
        """Repeat each head of ``x`` (requests, heads, n) ``count`` times."""
        return x if self.count == 1 else x.repeat_interleave(self.count, 1)

    def summed(self, x: torch.Tensor) -> torch.Tensor:
        """Sum the parts of each head: (requests, heads * count, n) to (requests, heads, n)."""
        return x if self.count == 1 else x.unflatten(1, (-1, self.count)).sum(2)

    def select(self, x: torch.Tensor) -> torch.Tensor:
        """Select scales or biases (requests, tokens, groups) by part, (requests, heads * count, tokens)."""
        return x.mT.index_select(1, self.groups)


@lru_cache(64)
def _parts(heads: int, kv_heads: int, head_dim: int, grid: Grid, device: torch.device) -> _HeadParts:
    place = torch.arange(grid.width, device=device)
    owner = torch.arange(heads, device=device) // (heads // kv_heads)
    group, inside = place // grid.size, place // head_dim == owner[:, None]
    first, last = owner * head_dim // grid.size, ((owner + 1) * head_dim - 1) // grid.size
    count = int((last - first).max()) + 1
    groups = first[:, None] + torch.arange(count, device=device)  # the mask of a group outside the head is all 0
    mask = inside[:, None] & (group == groups[..., None])
    return _HeadParts(count, groups.clamp(max=grid.width // grid.size - 1).flatten(), mask.flatten(0, 1).float())


def packed_scores(q: torch.Tensor, k: Packed) -> torch.Tensor:
    """Compute scores (requests, heads, tokens) in float32 of queries (requests, heads, head_dim) and keys."""
    parts = _parts(q.shape[1], k.kv_heads, k.head_dim, k.grid, q.device)
    wide = functional.pad(parts.spread(q).repeat(1, 1, k.kv_heads), (0, k.grid.width - k.kv_heads * k.head_dim))
    wide *= parts.mask
    scale, bias = _affine(k)
    product = torch.bmm(wide, _centred(k, q.dtype).mT).float()
    product.mul_(parts.select(scale)).add_(parts.select(bias).mul_(wide.float().sum(-1, keepdim=True)))
    return parts.summed(product)


def packed_weighted_sum(weights: torch.Tensor, v: Packed, dtype: torch.dtype) -> torch.Tensor:
    """Multiply ``weights`` (requests, heads, tokens) by values: (requests, heads, head_dim) in float32."""
    parts = _parts(weights.shape[1], v.kv_heads, v.head_dim, v.grid, weights.device)
    scale, bias = _affine(v)
    wide = parts.spread(weights)
    product = torch.bmm((wide * parts.select(scale)).to(dtype), _centred(v, dtype)).float()
    product.add_((wide * parts.select(bias)).sum(-1, keepdim=True)).mul_(parts.mask)
    heads = product[..., : v.kv_heads * v.head_dim].unflatten(-1, (v.kv_heads, v.head_dim))
    return parts.summed(heads.sum(-2))


def _affine(packed: Packed) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scale and bias (requests, tokens, groups) of `_centred` codes, in float32."""
    scale = packed.scale.float()
    return scale, packed.bias + scale * _centre(packed.grid.bits)


def _centre(bits: int) -> int:
    return 1 << bits - 1


def _centred(packed: Packed, dtype: torch.dtype) -> torch.Tensor:
    """Return codes (requests, tokens, width) minus half of their range, which reduces rounding."""
    codes, grid = packed.codes, packed.grid
    if grid.bits == 8:
        return _signed(codes.clone(), 8).to(dtype)
    numbers = torch.empty(*codes.shape[:-1], grid.width, dtype=dtype, device=codes.device)
    numbers[..., : grid.width // 2] = _signed(codes & 15, 4)
    numbers[..., grid.width // 2 :] = _signed(codes >> 4, 4)
    return numbers


def _signed(codes: torch.Tensor, bits: int) -> torch.Tensor:
    return codes.sub_(_centre(bits)).view(torch.int8)  # uint8 wraps around; its bits as int8 are the difference
