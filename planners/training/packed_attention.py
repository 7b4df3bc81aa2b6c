"""Attention over packs, each a memory and slots (`planners.training.packing`): a slot sees the memory and itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AttentionInterface

from planners.training.packing import IGNORE, PREAMBLE, PackedExample, rounded

NAME = "keep_packed"
MASKED_BIAS = -1e4
MATMUL_ROWS = 256  # maximum rows of a slot whose attention a CPU computes by matrix products instead of a kernel

MemoryKV = dict[int, tuple[torch.Tensor, torch.Tensor]]  # by layer: keys and values of the memory (B, H, M, D)
Pair = Sequence[torch.Tensor]  # keys or values of the memory (B, H, M, D) and of the slots (B, H, S*Q, D)


@dataclass(frozen=True)
class PackedBatch:
    """B padded packs as tensors, each with M = ``memory`` rows of memory, then S = ``slots`` slots of Q rows.

    ids, positions, labels: (B, M + S*Q); slot_bias: (B*S, 1, Q, M+Q), each slot's additive mask over memory and slot.
    ``causal``: a causal mask replaces slot_bias. It is for one pack without hidden lines, with one slot or long slots.
    ``frozen``: the memory's keys and values are constants, so that a step takes less time and room.
    memory_bias: (B, 1, M, M), additive mask if memory lines do not attend to each other; None for causal attention.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    labels: torch.Tensor
    slot_bias: torch.Tensor
    memory: int
    slots: int
    kinds: tuple[tuple[str, ...], ...]
    causal: bool = False
    frozen: bool = False
    memory_bias: torch.Tensor | None = None

    def to(self, device: torch.device | str) -> PackedBatch:
        tensors = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, torch.Tensor)}
        return replace(self, **tensors)


def collate(
    packs: Sequence[PackedExample], bos: int, pad: int, dtype: torch.dtype = torch.bfloat16, separate: bool = False,
    frozen: bool = False,
) -> PackedBatch:  # fmt: skip
    """Pad packs to a batch. The memory starts with the BOS token, as the context prefix does at run time.

    With ``separate`` a memory line attends only to itself, BOS and the preamble, as in separately encoded KV blocks.
    """
    slots = max(len(pack.slots) for pack in packs)
    width = max(len(slot.ids) for pack in packs for slot in pack.slots)
    unmasked = len(packs) == 1 and not separate and not any(slot.hidden_lines for slot in packs[0].slots)
    causal = unmasked and not frozen and (slots == 1 or width > MATMUL_ROWS)
    width = width if causal else rounded(width)
    memory = 1 + max(pack.memory_tokens for pack in packs)
    memory = memory if causal else rounded(memory)
    rows = memory + slots * width
    ids = torch.full((len(packs), rows), pad)
    labels = torch.full((len(packs), rows), IGNORE)
    positions = torch.zeros(len(packs), rows, dtype=torch.long)
    visible_memory = torch.zeros(len(packs), slots, 1, memory, dtype=torch.bool)
    lines = torch.full((len(packs), memory), -1)  # line number of each row; 0 for BOS and preamble, -1 for padding
    for b, pack in enumerate(packs):
        start = 1
        ids[b, 0], lines[b, 0] = bos, 0
        places: dict[str, slice] = {}
        for number, (name, tokens) in enumerate(pack.memory, 1):
            places[name] = slice(start, start + len(tokens))
            ids[b, places[name]] = torch.tensor(tokens)
            lines[b, places[name]] = 0 if name == PREAMBLE else number
            start += len(tokens)
        positions[b, :memory] = torch.arange(memory)
        for s, slot in enumerate(pack.slots):
            first = memory + s * width
            ids[b, first : first + len(slot.ids)] = torch.tensor(slot.ids)
            labels[b, first : first + len(slot.ids)] = torch.tensor(slot.labels)
            positions[b, first : first + width] = torch.arange(start, start + width)
            visible_memory[b, s, 0, :start] = True
            for name in slot.hidden_lines:
                visible_memory[b, s, 0, places[name]] = False
    kinds = tuple(tuple(slot.kind for slot in pack.slots) for pack in packs)
    if causal:
        return PackedBatch(ids, positions, labels, torch.zeros(0, dtype=dtype), memory, slots, kinds, causal=True)
    visible_slot = torch.ones(width, width, dtype=torch.bool).tril().expand(len(packs), slots, width, width)
    visible = torch.cat([visible_memory.expand(-1, -1, width, -1), visible_slot], -1).flatten(0, 1)[:, None]
    memory_bias = _bias(_same_line_mask(lines)[:, None], dtype) if separate else None
    bias = _bias(visible, dtype)
    return PackedBatch(ids, positions, labels, bias, memory, slots, kinds, frozen=frozen, memory_bias=memory_bias)


def _bias(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, MASKED_BIAS)


def _same_line_mask(lines: torch.Tensor) -> torch.Tensor:
    """Return (B, M, M): a row sees BOS, the preamble, itself and earlier rows of its line.

    ``lines`` (B, M): line number of each row.
    """
    same = lines[:, :, None] == lines[:, None, :]
    return (same | (lines == 0)[:, None, :]).tril()


def packed_attention(
    module: nn.Module,
    query: torch.Tensor,  # (B, H, rows, D)
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    pack: PackedBatch | None = None,
    memory_kv: MemoryKV | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Compute attention in a model of transformers; the model's call passes ``pack``.

    With ``memory_kv`` the pack is computed in two calls: one for its memory, which fills ``memory_kv``, then one for
    its slots.
    """
    device = query.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else query.dtype
    group = query.shape[1] // key.shape[1]  # GQA: each KV head serves a group of heads
    query, key, value = query.to(dtype), _repeated(key.to(dtype), group), _repeated(value.to(dtype), group)
    attend = partial(F.scaled_dot_product_attention, scale=scaling)  # its kernels do not store the attention weights
    if memory_kv is not None and module.layer_idx not in memory_kv:
        memory_kv[module.layer_idx] = key, value
        return _memory_attention(query, key, value, pack, attend).transpose(1, 2), None
    if memory_kv is not None:
        keys, values = zip(memory_kv[module.layer_idx], (key, value), strict=True)
        return _slot_attention(query, keys, values, pack, scaling).transpose(1, 2), None
    sizes = [pack.memory, query.shape[2] - pack.memory]
    queries, keys, values = (x.split(sizes, 2) for x in (query, key, value))
    if pack.causal:  # copying the memory for each slot costs less than a mask
        out = attend(*(_with_memory(*pair, pack.slots) for pair in (queries, keys, values)), is_causal=True)
        memory_out, slot_out = out.split([pack.memory, out.shape[2] - pack.memory], 2)
        return torch.cat([memory_out[:1], _merge(slot_out, pack.slots)], 2).transpose(1, 2), None
    memory_out = _memory_attention(queries[0], keys[0], values[0], pack, attend)
    slot_out = _slot_attention(queries[1], keys, values, pack, scaling)
    return torch.cat([memory_out, slot_out], 2).transpose(1, 2), None


def _memory_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, pack: PackedBatch, attend: Callable[..., torch.Tensor]
) -> torch.Tensor:
    if pack.memory_bias is None:  # a causal mask is enough: padded rows come last and are hidden from slots
        return attend(query, key, value, is_causal=True)
    return attend(query, key, value, attn_mask=pack.memory_bias.to(query.dtype))


def _slot_attention(
    query: torch.Tensor, keys: Pair, values: Pair, pack: PackedBatch, scaling: float | None
) -> torch.Tensor:
    """Attend from the slots (B, H, S*Q, D) to the memory and to the slot itself."""
    # on a CPU the backward pass of the kernels is slow in bfloat16: matrix products are up to five times as fast
    matmul = query.device.type == "cpu" and query.dtype is torch.bfloat16
    short = query.shape[2] // pack.slots <= MATMUL_ROWS
    return (_matmul_attention if matmul and short else _kernel_attention)(query, keys, values, pack, scaling)


def _repeated(states: torch.Tensor, times: int) -> torch.Tensor:
    """Repeat each KV head: (B, KV heads, rows, D) -> (B, KV heads * times, rows, D)."""
    return states if times == 1 else states.repeat_interleave(times, 1)


def _with_memory(memory: torch.Tensor, row: torch.Tensor, slots: int) -> torch.Tensor:
    """Return each slot as a batch entry after a copy of the memory: (B*S, H, M+Q, D)."""
    copies = memory[:, None].expand(-1, slots, -1, -1, -1).flatten(0, 1)
    return torch.cat([copies, _split(row, slots)], 2)


def _split(row: torch.Tensor, slots: int) -> torch.Tensor:
    """Turn slots in a row (B, H, S*Q, D) into batch entries (B*S, H, Q, D)."""
    return row.unflatten(2, (slots, -1)).transpose(1, 2).flatten(0, 1)


def _merge(entries: torch.Tensor, slots: int) -> torch.Tensor:
    """Turn batch entries (B*S, H, Q, D) into slots in a row (B, H, S*Q, D)."""
    return entries.unflatten(0, (-1, slots)).transpose(1, 2).flatten(2, 3)


def _kernel_attention(
    query: torch.Tensor, keys: Pair, values: Pair, pack: PackedBatch, scaling: float | None
) -> torch.Tensor:
    """Attend from the slots (B, H, S*Q, D) to the memory and to the slot itself, by a kernel."""
    states = _split(query, pack.slots), _with_memory(*keys, pack.slots), _with_memory(*values, pack.slots)
    out = F.scaled_dot_product_attention(*states, attn_mask=pack.slot_bias.to(query.dtype), scale=scaling)
    return _merge(out, pack.slots)


def _matmul_attention(
    query: torch.Tensor, keys: Pair, values: Pair, pack: PackedBatch, scaling: float | None
) -> torch.Tensor:
    """Compute `_kernel_attention` by matrix products; one product covers all slots' queries and the memory's keys."""
    batch, heads, rows, dim = query.shape
    shape = (batch, heads, pack.slots, rows // pack.slots)
    query = query * (dim**-0.5 if scaling is None else scaling)
    (memory_keys, slot_keys), (memory_values, slot_values) = keys, values
    memory = (query @ memory_keys.transpose(2, 3)).view(*shape, pack.memory)
    slot = query.reshape(*shape, dim) @ slot_keys.reshape(*shape, dim).transpose(3, 4)
    bias = pack.slot_bias.to(query.dtype).view(batch, pack.slots, 1, shape[3], -1).transpose(1, 2)
    weights = torch.softmax(torch.cat([memory, slot], -1) + bias, -1)  # (B, H, S, Q, M+Q)
    memory, slot = weights.split([pack.memory, shape[3]], -1)
    out = memory.reshape(batch, heads, rows, pack.memory) @ memory_values
    return out + (slot @ slot_values.reshape(*shape, dim)).view(batch, heads, rows, dim)


AttentionInterface.register(NAME, packed_attention)
