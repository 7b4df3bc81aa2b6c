"""Attention over packs: slots see the memory and themselves, each slot as a row of a batch of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AttentionInterface

from planners.training.packing import IGNORE, Pack, rounded

NAME = "keep_packed"
HIDE = -1e4
BY_HAND = 256  # rows of a slot at most that are weighed without a kernel

Pair = Sequence[torch.Tensor]  # of the memory (B, H, M, D) and of the slots (B, H, S*Q, D)


@dataclass(frozen=True)
class Batch:
    """Packs as tensors; rows are ``[memory (M)][slots (S x Q)]``, padded.

    ids, positions, labels: (B, M + S*Q); slot_bias: (B*S, 1, Q, M+Q), what a slot sees of memory and itself.
    Slots that go on where one memory ends, and see all of it, are ``causal``: the memory is not padded, the bias empty.
    memory_bias: (B, 1, M, M), where lines of the memory do not see each other; None where all see what stands before.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    labels: torch.Tensor
    slot_bias: torch.Tensor
    memory: int
    slots: int
    kinds: tuple[tuple[str, ...], ...]
    causal: bool = False
    memory_bias: torch.Tensor | None = None

    def to(self, device: torch.device | str) -> Batch:
        moved = {
            name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in vars(self).items()
        }
        return Batch(**moved)


def collate(
    packs: Sequence[Pack], bos: int, pad: int, dtype: torch.dtype = torch.bfloat16, apart: bool = False
) -> Batch:
    """Pad packs to a batch. The memory starts with the BOS token, as the context prefix does at run time.

    ``apart``: its lines see themselves and that token only, as blocks that are encoded one by one.
    """
    slots = max(len(pack.slots) for pack in packs)
    width = max(len(slot.ids) for pack in packs for slot in pack.slots)
    alone = len(packs) == 1 and not apart and not any(slot.hidden for slot in packs[0].slots)
    causal = alone and (slots == 1 or width > BY_HAND)
    width = width if causal else rounded(width)
    memory = 1 + max(pack.memory_tokens for pack in packs)
    memory = memory if causal else rounded(memory)
    rows = memory + slots * width
    ids = torch.full((len(packs), rows), pad)
    labels = torch.full((len(packs), rows), IGNORE)
    positions = torch.zeros(len(packs), rows, dtype=torch.long)
    seen = torch.zeros(len(packs), slots, 1, memory, dtype=torch.bool)
    lines = torch.full((len(packs), memory), -1)  # the number of a row's line; 0: BOS
    for b, pack in enumerate(packs):
        start = 1
        ids[b, 0], lines[b, 0] = bos, 0
        places: dict[str, slice] = {}
        for number, (name, tokens) in enumerate(pack.memory, 1):
            places[name] = slice(start, start + len(tokens))
            ids[b, places[name]] = torch.tensor(tokens)
            lines[b, places[name]] = number
            start += len(tokens)
        positions[b, :memory] = torch.arange(memory)
        for s, slot in enumerate(pack.slots):
            first = memory + s * width
            ids[b, first : first + len(slot.ids)] = torch.tensor(slot.ids)
            labels[b, first : first + len(slot.ids)] = torch.tensor(slot.labels)
            positions[b, first : first + width] = torch.arange(start, start + width)
            seen[b, s, 0, :start] = True
            for name in slot.hidden:
                seen[b, s, 0, places[name]] = False
    kinds = tuple(tuple(slot.kind for slot in pack.slots) for pack in packs)
    if causal:
        return Batch(ids, positions, labels, torch.zeros(0, dtype=dtype), memory, slots, kinds, causal=True)
    own = torch.ones(width, width, dtype=torch.bool).tril().expand(len(packs), slots, width, width)
    visible = torch.cat([seen.expand(-1, -1, width, -1), own], -1).flatten(0, 1)[:, None]
    memory_bias = _bias(_apart(lines)[:, None], dtype) if apart else None
    return Batch(ids, positions, labels, _bias(visible, dtype), memory, slots, kinds, memory_bias=memory_bias)


def _bias(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, HIDE)


def _apart(lines: torch.Tensor) -> torch.Tensor:
    """(B, M, M): what stands before in the same line, and the first row, from the lines (B, M) of rows."""
    same = lines[:, :, None] == lines[:, None, :]
    return (same | (lines == 0)[:, None, :]).tril()


def packed_attention(
    module: nn.Module,
    query: torch.Tensor,  # (B, H, rows, D)
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    pack: Batch | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """transformers attention function; ``pack`` travels in the model call's kwargs. Training only, MHA."""
    device = query.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else query.dtype
    query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    attend = partial(F.scaled_dot_product_attention, scale=scaling)  # its kernels never hold a matrix of weights
    sizes = [pack.memory, query.shape[2] - pack.memory]
    queries, keys, values = (x.split(sizes, 2) for x in (query, key, value))
    if pack.causal:  # every slot computes the memory once more: that is less than to mask it
        out = attend(*(_behind(*pair, pack.slots) for pair in (queries, keys, values)), is_causal=True)
        told, asked = out.split([pack.memory, out.shape[2] - pack.memory], 2)
        return torch.cat([told[:1], _in_a_row(asked, pack.slots)], 2).transpose(1, 2), None
    memory_query, slot_query = queries
    if pack.memory_bias is None:  # what is padded comes last, and is not read
        memory_out = attend(memory_query, keys[0], values[0], is_causal=True)
    else:
        memory_out = attend(memory_query, keys[0], values[0], attn_mask=pack.memory_bias.to(dtype))
    # on a CPU the kernels' backward is slow in bfloat16: two products are up to five times as quick for short slots
    by_hand = device == "cpu" and dtype is torch.bfloat16 and sizes[1] // pack.slots <= BY_HAND
    slot_out = (_weighed if by_hand else _attended)(slot_query, keys, values, pack, scaling)
    return torch.cat([memory_out, slot_out], 2).transpose(1, 2), None


def _behind(told: torch.Tensor, asked: torch.Tensor, slots: int) -> torch.Tensor:
    """Every slot as a row of a batch of its own, behind a copy of the memory: (B*S, H, M+Q, D)."""
    shared = told[:, None].expand(-1, slots, -1, -1, -1).flatten(0, 1)
    return torch.cat([shared, _singly(asked, slots)], 2)


def _singly(row: torch.Tensor, slots: int) -> torch.Tensor:
    """Slots beside each other (B, H, S*Q, D), each as a row of a batch of its own: (B*S, H, Q, D)."""
    return row.unflatten(2, (slots, -1)).transpose(1, 2).flatten(0, 1)


def _in_a_row(single: torch.Tensor, slots: int) -> torch.Tensor:
    """The way back: (B*S, H, Q, D) to (B, H, S*Q, D)."""
    return single.unflatten(0, (-1, slots)).transpose(1, 2).flatten(2, 3)


def _attended(query: torch.Tensor, keys: Pair, values: Pair, pack: Batch, scaling: float | None) -> torch.Tensor:
    """What the slots' queries (B, H, S*Q, D) find in the memory and in their slot, through a kernel."""
    single, seen, read = _singly(query, pack.slots), _behind(*keys, pack.slots), _behind(*values, pack.slots)
    bias = pack.slot_bias.to(query.dtype)
    found = F.scaled_dot_product_attention(single, seen, read, attn_mask=bias, scale=scaling)
    return _in_a_row(found, pack.slots)


def _weighed(query: torch.Tensor, keys: Pair, values: Pair, pack: Batch, scaling: float | None) -> torch.Tensor:
    """The same with its weights written out, so that all slots read the memory in one product."""
    batch, heads, rows, dim = query.shape
    shape = (batch, heads, pack.slots, rows // pack.slots)
    query = query * (dim**-0.5 if scaling is None else scaling)
    (memory_keys, own_keys), (memory_values, own_values) = keys, values
    far = (query @ memory_keys.transpose(2, 3)).view(*shape, pack.memory)
    own = query.reshape(*shape, dim) @ own_keys.reshape(*shape, dim).transpose(3, 4)
    bias = pack.slot_bias.to(query.dtype).view(batch, pack.slots, 1, shape[3], -1).transpose(1, 2)
    weights = torch.softmax(torch.cat([far, own], -1) + bias, -1)  # (B, H, S, Q, M+Q)
    far, own = weights.split([pack.memory, shape[3]], -1)
    out = far.reshape(batch, heads, rows, pack.memory) @ memory_values
    return out + (own @ own_values.reshape(*shape, dim)).view(batch, heads, rows, dim)


AttentionInterface.register(NAME, packed_attention)
