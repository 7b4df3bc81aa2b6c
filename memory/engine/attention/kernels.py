"""Attention over explicit blocks: grouped matrix products on the CPU, SDPA elsewhere.

On CPUs torch's SDPA is slow in bfloat16. Here the query heads that share a KV head are folded into the rows of one
matrix product, and the query rows are cut into blocks that read only the keys they may see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from memory.engine.cpu import half_precision_matmul as products
from memory.engine.cpu.half_precision_matmul import QUERIES

BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
QUERY_BLOCK = {torch.bfloat16: 128, torch.float32: 64}  # rows; measured on AVX512-BF16 at head_dim 32 and 64

KEY_MULTIPLE = 32  # torch's bfloat16 softmax takes half the time when its rows are a multiple of this


def padding(keys: int) -> int:
    """Masked columns that make ``keys`` columns a multiple of ``KEY_MULTIPLE``."""
    return -keys % KEY_MULTIPLE


def query_block(dtype: torch.dtype) -> int:
    """Query rows per block."""
    return QUERY_BLOCK.get(dtype, 128)


class Weights(Protocol):
    """Takes the weights (requests * heads, rows, keys) of one block after another."""

    def append(self, weights: torch.Tensor, /) -> None: ...


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """How a layer wants its attention."""

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None  # (heads,)


@dataclass(frozen=True, slots=True)
class Block:
    """Query rows ``q0:q1`` read key rows ``0:prefix`` and ``k0:k1``.

    ``bias`` (q1 - q0, n), 0 or -inf, covers the last n of those keys; the keys before are visible to all rows. ``k1``
    may lie up to ``KEY_MULTIPLE`` rows behind the last key: those columns are masked, and must be finite.
    """

    q0: int
    q1: int
    k0: int
    k1: int
    bias: torch.Tensor | None
    prefix: int = 0

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """The block's part of keys or values ``x`` (requests * kv_heads, rows, head_dim)."""
        body = x[:, self.k0 : self.k1]
        return torch.cat([x[:, : self.prefix], body], 1) if self.prefix else body


def _with_sinks(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Softmax over the keys; a sink (one logit per head) takes mass and gives nothing."""
    if sinks is None:
        return scores.softmax(-1)
    column = sinks.to(scores.dtype).view(-1, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, column], -1).softmax(-1)[..., :-1]


def block_probabilities(
    q: torch.Tensor, keys: torch.Tensor, block: Block, softcap: float | None, sinks: torch.Tensor | None
) -> torch.Tensor:
    """Weights ``(requests * heads, rows, keys)`` of scaled queries ``q`` (requests, heads, rows, head_dim)."""
    return _probabilities(q[:, :, block.q0 : block.q1], keys, block.bias, softcap, sinks)


def _probabilities(
    q: torch.Tensor, keys: torch.Tensor, bias: torch.Tensor | None, softcap: float | None, sinks: torch.Tensor | None
) -> torch.Tensor:
    """`block_probabilities` of all rows of ``q``; ``bias`` covers the first rows and the last keys."""
    requests, heads, rows, dim = q.shape
    folded = q.reshape(keys.shape[0], -1, dim)
    scores = products.scores(folded, keys).reshape(requests * heads, rows, keys.shape[1])
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores[:, : bias.shape[0], keys.shape[1] - bias.shape[1] :] += bias
    sinks = sinks if sinks is None or requests == 1 else sinks.repeat(requests)
    return _with_sinks(scores, sinks)


def grouped_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    blocks: Sequence[Block],
    scale: float,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    kept: Weights | None = None,
) -> torch.Tensor:
    """Attention of ``q`` (requests, heads, rows, head_dim) over ``k``, ``v`` (requests, kv_heads, keys, head_dim).

    Returns ``(requests, rows, heads, head_dim)``. ``blocks`` cover the query rows in order. Where the weights of a
    block exist as a tensor (requests * heads, rows, keys), they are appended to ``kept``.
    """
    if q.is_cuda and sinks is None and softcap is None:
        return device_attention(q, k, v, blocks, scale)
    requests, heads, _, dim = q.shape
    last = QUERIES.lacking(q, blocks[-1].q1 - blocks[-1].q0)
    q, k, v = functional.pad(q * scale, (0, 0, 0, last)), k.flatten(0, 1), v.flatten(0, 1)
    parts = []
    for block in blocks:
        rows = block.q1 - block.q0
        stop = block.q1 + QUERIES.lacking(q, rows)  # rows of the next block, or zeros, are padding
        weights = _probabilities(q[:, :, block.q0 : stop], block.take(k), block.bias, softcap, sinks)
        if kept is not None:
            kept.append(weights[:, :rows])
        folded = weights.reshape(k.shape[0], -1, weights.shape[-1])
        out = products.mix(folded, block.take(v)).reshape(requests, heads, -1, dim)
        parts.append(out[:, :, :rows].transpose(1, 2))
    return torch.cat(parts, 1) if len(parts) > 1 else parts[0].contiguous()


def device_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, blocks: Sequence[Block], scale: float
) -> torch.Tensor:
    """The same through torch's SDPA, one call per block (plans made for an accelerator hold few).

    Keys and values are repeated for the heads that share them: the memory-efficient kernel, the only fast one that
    takes a mask and any shape, knows no grouped queries. cuDNN is left out: it builds a plan for each new shape, which
    takes longer than the attention, and the number of rows differs from layer to layer.
    """
    flat_k, flat_v, parts = k.flatten(0, 1), v.flatten(0, 1), []
    groups = q.shape[1] // k.shape[1]
    with sdpa_kernel(BACKENDS):
        for block in blocks:
            keys, values = (
                block.take(x).unflatten(0, k.shape[:2]).repeat_interleave(groups, 1) for x in (flat_k, flat_v)
            )
            bias = block.bias
            if bias is not None:
                bias = functional.pad(bias, (keys.shape[2] - bias.shape[1], 0))
            rows = q[:, :, block.q0 : block.q1]
            out = functional.scaled_dot_product_attention(rows, keys, values, bias, scale=scale)
            parts.append(out.transpose(1, 2))
    return torch.cat(parts, 1) if len(parts) > 1 else parts[0].contiguous()
