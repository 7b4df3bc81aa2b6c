"""Attention by blocks of query and key rows: mask plans, grouped matrix products on the CPU, SDPA elsewhere.

On CPUs torch's SDPA is slow in bfloat16. Here the query heads that share a KV head are folded into the rows of one
matrix product. The query rows are cut into blocks that read only the keys visible to them.

Products in half precision are padded to few shapes, because oneDNN compiles a kernel for every shape, and memory
would grow without bound (docs/engine.md#memory-of-a-long-run). Padding changes no result: rows of a product are
independent, and zeros add nothing. If the processor lacks instructions for a dtype, oneDNN and padding are not used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
QUERY_BLOCK = {torch.bfloat16: 128, torch.float32: 64}  # rows; measured on AVX512-BF16 at head_dim 32 and 64


@cache
def onednn_multiplies(dtype: torch.dtype) -> bool:
    """Tell whether oneDNN computes products of ``dtype`` on this machine's CPU."""
    if dtype not in (torch.bfloat16, torch.float16) or not torch.backends.mkldnn.is_available():
        return False
    ops = torch.ops.mkldnn
    return bool(ops._is_mkldnn_bf16_supported() if dtype == torch.bfloat16 else ops._is_mkldnn_fp16_supported())


@dataclass(frozen=True)
class RowPadding:
    """Padding to numbers of rows: 1, multiple / 4, multiple, 2 * multiple, ..., steps * multiple, then larger steps."""

    multiple: int
    steps: int  # number of multiples until the step first doubles; beyond, at most 2 / steps of the rows are padding

    def round_up(self, count: int) -> int:
        """Return the smallest allowed number that is at least ``count``."""
        if count <= self.multiple // 4:
            return 1 if count <= 1 else self.multiple // 4
        step = self.multiple
        while count > self.steps * step:
            step *= 2
        return -(-count // step) * step

    def rows_to_add(self, x: torch.Tensor, count: int) -> int:
        """Return the number of padding rows for ``count`` rows of ``x``; 0 if oneDNN is not used."""
        return self.round_up(count) - count if x.device.type == "cpu" and onednn_multiplies(x.dtype) else 0

    def padded(self, x: torch.Tensor) -> torch.Tensor:
        """Pad ``x`` (..., rows, numbers) with rows of zeros at the end."""
        more = self.rows_to_add(x, x.shape[-2])
        return functional.pad(x, (0, 0, 0, more)) if more else x


QUERY_PADDING = RowPadding(32, 16)
KEY_PADDING = RowPadding(32, 8)  # for keys and values


def attention_scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Compute (..., rows, keys) products of ``q`` (..., rows, head_dim) and ``k`` (..., keys, head_dim)."""
    return (QUERY_PADDING.padded(q) @ KEY_PADDING.padded(k).mT)[..., : q.shape[-2], : k.shape[-2]]


def weighted_sum(weights: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Compute (..., rows, head_dim): ``weights`` (..., rows, keys) times ``v`` (..., keys, head_dim)."""
    more = KEY_PADDING.rows_to_add(v, v.shape[-2])
    wide = functional.pad(weights, (0, more)) if more else weights
    return (QUERY_PADDING.padded(wide) @ KEY_PADDING.padded(v))[..., : weights.shape[-2], :]


KEY_MULTIPLE = 32  # torch's bfloat16 softmax takes half the time if its rows' length is a multiple of this


def padding(keys: int) -> int:
    """Return the number of masked columns that fill ``keys`` columns up to a multiple of ``KEY_MULTIPLE``."""
    return -keys % KEY_MULTIPLE


class WeightReceiver(Protocol):
    """Receiver of attention weights (requests * heads, rows, keys), one block after another."""

    def append(self, weights: torch.Tensor, /) -> None: ...


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """Attention settings of a layer."""

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None  # (heads,)


@dataclass(frozen=True, slots=True)
class MaskBlock:
    """Part of a mask, not a KV block: query rows ``q0:q1`` read key rows ``0:prefix`` and ``k0:k1``.

    ``bias`` (q1 - q0, n) is for the last n of these keys: 0 where a query row sees a key, else -inf. The keys before
    them are visible to all query rows. ``k1`` may lie up to ``KEY_MULTIPLE`` rows after the last key: the bias is -inf
    for this padding.
    """

    q0: int
    q1: int
    k0: int
    k1: int
    bias: torch.Tensor | None
    prefix: int = 0

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """Select the block's rows of keys or values ``x`` (requests * kv_heads, rows, head_dim)."""
        body = x[:, self.k0 : self.k1]
        return torch.cat([x[:, : self.prefix], body], 1) if self.prefix else body


def block_probabilities(
    q: torch.Tensor, keys: torch.Tensor, block: MaskBlock, softcap: float | None, sinks: torch.Tensor | None
) -> torch.Tensor:
    """Compute weights ``(requests * heads, rows, keys)`` of scaled queries ``q`` (requests, heads, rows, head_dim)."""
    return _probabilities(q[:, :, block.q0 : block.q1], keys, block.bias, softcap, sinks)


def _probabilities(
    q: torch.Tensor, keys: torch.Tensor, bias: torch.Tensor | None, softcap: float | None, sinks: torch.Tensor | None
) -> torch.Tensor:
    """Compute weights of all rows of ``q``; ``bias`` (n, m) is added to the first n rows' scores of the last m keys."""
    requests, heads, rows, dim = q.shape
    folded = q.reshape(keys.shape[0], -1, dim)
    scores = attention_scores(folded, keys).reshape(requests * heads, rows, keys.shape[1])
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores[:, : bias.shape[0], keys.shape[1] - bias.shape[1] :] += bias
    if sinks is None:
        return scores.softmax(-1)
    column = sinks.repeat(requests).to(scores.dtype).view(-1, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, column], -1).softmax(-1)[..., :-1]  # a sink, a logit per head, has weight but no value


def grouped_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    blocks: Sequence[MaskBlock],
    scale: float,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    weights_out: WeightReceiver | None = None,
) -> torch.Tensor:
    """Attend with ``q`` (requests, heads, rows, head_dim) to ``k``, ``v`` (requests, kv_heads, keys, head_dim).

    Returns ``(requests, rows, heads, head_dim)``. ``blocks`` cover the query rows in order. The weights of each block
    (requests * heads, rows, keys) are appended to ``weights_out``, but not on a GPU if both sinks and softcap are None.
    """
    if q.is_cuda and sinks is None and softcap is None:
        return device_attention(q, k, v, blocks, scale)
    requests, heads, _, dim = q.shape
    last = QUERY_PADDING.rows_to_add(q, blocks[-1].q1 - blocks[-1].q0)
    q, k, v = functional.pad(q * scale, (0, 0, 0, last)), k.flatten(0, 1), v.flatten(0, 1)
    parts = []
    for block in blocks:
        rows = block.q1 - block.q0
        stop = block.q1 + QUERY_PADDING.rows_to_add(q, rows)  # the padding rows are those of the next block, or zeros
        weights = _probabilities(q[:, :, block.q0 : stop], block.take(k), block.bias, softcap, sinks)
        if weights_out is not None:
            weights_out.append(weights[:, :rows])
        folded = weights.reshape(k.shape[0], -1, weights.shape[-1])
        out = weighted_sum(folded, block.take(v)).reshape(requests, heads, -1, dim)
        parts.append(out[:, :, :rows].transpose(1, 2))
    return torch.cat(parts, 1) if len(parts) > 1 else parts[0].contiguous()


def device_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, blocks: Sequence[MaskBlock], scale: float
) -> torch.Tensor:
    """Compute the output of `grouped_attention` with torch's SDPA, one call per block; plans for a GPU have few blocks.

    Keys and values are repeated for the heads that share them. Only the memory-efficient kernel is fast with masks and
    any shape, and it does not support grouped queries. cuDNN is not used: it plans every new
    shape, which takes longer than the attention, and the number of rows differs from layer to layer.
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


@dataclass(slots=True)
class LayerAttention:
    """Attention of one layer over one pass: its inputs, and its output on demand.

    A tiled cache is read tile by tile: ``keys`` and ``values`` are None, and there are no `weights`.
    """

    layer: int
    query: torch.Tensor  # rotated, (requests, heads, active rows, head_dim)
    keys: torch.Tensor | None  # (requests, kv_heads, visible rows, head_dim)
    values: torch.Tensor | None
    params: AttentionParams
    blocks: Sequence[MaskBlock]
    tiles: Callable[[], torch.Tensor] | None = None  # computes the output of a tiled cache
    keeps_weights: bool = False  # whether `weights` may be kept: they are large
    _out: torch.Tensor | None = None
    _weights: list[torch.Tensor] = field(default_factory=list)

    @property
    def weights(self) -> Sequence[torch.Tensor]:
        """Weights of all rows, one tensor per block, (requests * heads, rows, keys); empty if they are not kept."""
        if self.keeps_weights:
            self.output()
        return self._weights

    def output(self, weights_out: WeightReceiver | None = None) -> torch.Tensor:
        """Compute (requests, active rows, heads, head_dim) once; weights go to ``weights_out`` if given."""
        if self._out is None:
            weights_out = self._weights if self.keeps_weights and weights_out is None else weights_out
            self._out = self._attend(self.query, self.blocks, weights_out) if self.tiles is None else self.tiles()
        return self._out

    def output_of(self, rows: torch.Tensor, blocks: Sequence[MaskBlock]) -> torch.Tensor:
        """Compute the output of the active rows numbered ``rows``. Output of other rows is undefined, but finite."""
        if self._out is not None:
            return self._out
        out = self.query.new_zeros(self.query.transpose(1, 2).shape)
        out[:, rows] = self._attend(self.query[:, :, rows], blocks, None)
        return out

    def _attend(self, q: torch.Tensor, blocks: Sequence[MaskBlock], weights_out: WeightReceiver | None) -> torch.Tensor:
        p = self.params
        return grouped_attention(q, self.keys, self.values, blocks, p.scale, p.softcap, p.sinks, weights_out)


GAP_COST = 8192  # number of products of a query row and a key that take as long as an additional block

BlocksByWindow = Callable[[int | None], list[MaskBlock]]


@dataclass
class MaskPlan:
    """Blocks of a pass for each sliding window of its layers, made on first use."""

    make_blocks: BlocksByWindow
    _blocks: dict[int | None, list[MaskBlock]] = field(default_factory=dict)

    def blocks(self, window: int | None) -> list[MaskBlock]:
        if window not in self._blocks:
            self._blocks[window] = self.make_blocks(window)
        return self._blocks[window]


def bias_of(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Make the bias: 0 where ``visible``, -inf elsewhere."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))


def _block_rows(rows: int, dtype: torch.dtype, device: torch.device) -> int:
    """Return the number of query rows per block: all on a GPU."""
    return rows if device.type == "cuda" else QUERY_BLOCK.get(dtype, 128)


def causal_plan(rows: torch.Tensor, positions: torch.Tensor, dtype: torch.dtype) -> MaskPlan:
    """Plan causal attention of the rows numbered ``rows`` (sorted). ``positions`` of all rows must increase."""

    def blocks(window: int | None) -> list[MaskBlock]:
        bounds = _bounds(rows, dtype)
        firsts, lasts = rows[[q0 for q0, _ in bounds]].tolist(), rows[[q1 - 1 for _, q1 in bounds]].tolist()
        result = []
        for (q0, q1), first, last in zip(bounds, firsts, lasts, strict=True):
            low, free = 0, first + 1  # the first visible key row, and the first not visible to all query rows
            if window is not None:
                low = int(torch.searchsorted(positions, positions[first] - window, right=True))
                free = free if low == 0 and int(positions[last] - positions[0]) < window else low
            stop = last + 1 + padding(last + 1 - low)
            bias = _causal_bias(rows[q0:q1], positions, free, stop, window, dtype)
            result.append(MaskBlock(q0, q1, low, stop, bias))
        return result

    return MaskPlan(blocks)


def _bounds(rows: torch.Tensor, dtype: torch.dtype) -> list[tuple[int, int]]:
    """Split ``rows`` into blocks of equal size, on a CPU also before wide gaps; returns [first, last) of each block.

    A block reads all keys up to that of its last row. If it spanned a gap, its first rows would read many masked keys.
    """
    count = rows.numel()
    step = _block_rows(count, dtype, rows.device)
    if rows.is_cuda or count == 0 or int(rows[-1] - rows[0]) + 1 == count:
        return [(start, min(count, start + step)) for start in range(0, count, step)]
    places, bounds, start = rows.tolist(), [], 0
    for number in range(1, count):
        saving = (number - start) * (places[number] - places[number - 1] - 1)
        if number - start == step or saving > GAP_COST:
            bounds.append((start, number))
            start = number
    return [*bounds, (start, count)]


def _causal_bias(
    rows: torch.Tensor, positions: torch.Tensor, start: int, stop: int, window: int | None, dtype: torch.dtype
) -> torch.Tensor | None:
    """Make the bias over key rows ``start:stop``; None if that range is empty."""
    if start >= stop:
        return None
    keys = torch.arange(start, stop, device=rows.device)
    visible = keys[None] <= rows[:, None]
    if window is not None:
        places = positions[keys.clamp(max=positions.numel() - 1)]
        visible &= places[None] > positions[rows][:, None] - window
    return bias_of(visible, dtype)


def unit_plan(
    lengths: Sequence[int], context: int, dtype: torch.dtype, device: torch.device, extra: int = 0
) -> MaskPlan:
    """Plan a forward of units (parts of a prompt): a row attends to the context, earlier rows of its unit, and itself.

    Key rows are ``[context][units in order]``; every unit starts at position ``context``. The first unit has
    ``extra`` leading rows that are keys only.
    """
    sizes = torch.tensor([extra + lengths[0], *lengths[1:]], device=device)
    unit = torch.repeat_interleave(torch.arange(len(lengths), device=device), sizes)
    starts = (sizes.cumsum(0) - sizes)[unit]  # first row of each row's unit; rows are numbered after the context
    total = unit.numel()

    def blocks(window: int | None) -> list[MaskBlock]:
        step, result = _block_rows(total, dtype, device), []
        for q0 in range(extra, total, step):
            q1, k0 = min(total, q0 + step), int(starts[q0])
            k1 = q1 + padding(context + q1 - k0)
            rows, keys = torch.arange(q0, q1, device=device), torch.arange(k0, k1, device=device)
            owner = unit[keys.clamp(max=total - 1)]
            visible = (unit[q0:q1, None] == owner[None]) & (keys[None] <= rows[:, None])
            if window is not None:  # the context's columns come first
                places = context + (rows - starts[q0:q1])[:, None]  # positions of the query rows
                near = places - torch.arange(context, device=device)[None] < window
                visible = torch.cat([near, visible & (rows[:, None] - keys[None] < window)], 1)
            bias = bias_of(visible, dtype)
            result.append(MaskBlock(q0 - extra, q1 - extra, context + k0, context + k1, bias, context))
        return result

    return MaskPlan(blocks)


def tree_plan(
    ancestry: torch.Tensor, depth: torch.Tensor, positions: torch.Tensor, following: int, dtype: torch.dtype
) -> MaskPlan:
    """Plan a forward of trie nodes after a prompt: each attends to the prompt, its ancestors and itself.

    :param ancestry: (nodes, nodes) bias, 0 for ancestors and the node itself, else -inf; parents come before children
    :param depth: (nodes,) 0 for the first token after the prompt
    :param positions: (prompt rows,)
    :param following: position of the first token after the prompt; larger than the number of rows if some were evicted
    """
    nodes, prompt = ancestry.shape[0], positions.numel()

    def blocks(window: int | None) -> list[MaskBlock]:
        bias = ancestry
        if window is not None:
            prompt_bias = bias_of(positions[None] > (following + depth)[:, None] - window, dtype)
            near = bias_of(depth[None] > depth[:, None] - window, dtype)
            bias = torch.cat([prompt_bias, ancestry + near], 1)
        before = bias.shape[1] - nodes  # the bias's columns for the prompt
        step, result = _block_rows(nodes, dtype, depth.device), []
        for q0 in range(0, nodes, step):
            q1 = min(nodes, q0 + step)
            extra = padding(prompt + q1)
            visible = functional.pad(bias[q0:q1, : before + q1], (0, extra), value=float("-inf"))
            result.append(MaskBlock(q0, q1, 0, prompt + q1 + extra, visible))
        return result

    return MaskPlan(blocks)
