"""Attention over packs: slots see the memory and themselves, each slot as a row of a batch of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AttentionInterface

from planners.packing import IGNORE, Pack

NAME = "keep_packed"
HIDE = -1e4


@dataclass(frozen=True)
class Batch:
    """Packs as tensors; rows are ``[memory (M)][slots (S x Q)]``, padded.

    ids, positions, labels: (B, M + S*Q); slot_bias: (B*S, 1, Q, M+Q), what a slot sees of memory and itself.
    One slot that goes on where one memory ends is ``causal``: nothing is padded, and the bias is empty.
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


def rounded(length: int, unit: int = 16) -> int:
    return -(-length // unit) * unit


def collate(
    packs: Sequence[Pack], bos: int, pad: int, dtype: torch.dtype = torch.bfloat16, apart: bool = False
) -> Batch:
    """Pad packs to a batch. The memory starts with the BOS token, as the context prefix does at run time.

    ``apart``: its lines see themselves and that token only, as blocks that are encoded one by one.
    """
    if len(packs) == 1 and len(packs[0].slots) == 1 and not packs[0].slots[0].hidden:
        return _alone(packs[0], bos, dtype)
    memory = rounded(1 + max(pack.memory_tokens for pack in packs))
    slots = max(len(pack.slots) for pack in packs)
    width = rounded(max(len(slot.ids) for pack in packs for slot in pack.slots))
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
    own = torch.ones(width, width, dtype=torch.bool).tril().expand(len(packs), slots, width, width)
    visible = torch.cat([seen.expand(-1, -1, width, -1), own], -1).flatten(0, 1)[:, None]
    kinds = tuple(tuple(slot.kind for slot in pack.slots) for pack in packs)
    memory_bias = _bias(_apart(lines)[:, None], dtype) if apart else None
    return Batch(ids, positions, labels, _bias(visible, dtype), memory, slots, kinds, memory_bias=memory_bias)


def _bias(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, HIDE)


def _apart(lines: torch.Tensor) -> torch.Tensor:
    """(B, M, M): what stands before in the same line, and the first row, from the lines (B, M) of rows."""
    same = lines[:, :, None] == lines[:, None, :]
    return (same | (lines == 0)[:, None, :]).tril()


def _alone(pack: Pack, bos: int, dtype: torch.dtype) -> Batch:
    (slot,) = pack.slots
    told = [bos, *(token for _, ids in pack.memory for token in ids)]
    ids, labels = torch.tensor([[*told, *slot.ids]]), torch.tensor([[IGNORE] * len(told) + list(slot.labels)])
    nothing = torch.zeros(0, dtype=dtype)
    places = torch.arange(ids.shape[1])[None]
    return Batch(ids, places, labels, nothing, len(told), 1, ((slot.kind,),), causal=True)


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
    if pack.causal:
        return attend(query, key, value, is_causal=True).transpose(1, 2), None
    batch, heads, rows, dim = query.shape
    memory, slots = pack.memory, pack.slots
    width = (rows - memory) // slots

    def apart(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Memory rows (B, H, M, D) and slot rows (B, S, H, Q, D)."""
        told, asked = x.split([memory, slots * width], 2)
        return told, asked.reshape(batch, heads, slots, width, dim).transpose(1, 2)

    def joined(told: torch.Tensor, asked: torch.Tensor) -> torch.Tensor:
        """What a slot may see, (B*S, H, M+Q, D): every slot has the memory before it."""
        shared = told[:, None].expand(batch, slots, heads, memory, dim)
        return torch.cat([shared, asked], 3).flatten(0, 1)

    (memory_query, slot_query), keys, values = apart(query), apart(key), apart(value)
    if pack.memory_bias is None:  # what is padded comes last, and is not read
        memory_out = attend(memory_query, keys[0], values[0], is_causal=True)
    else:
        memory_out = attend(memory_query, keys[0], values[0], attn_mask=pack.memory_bias.to(dtype))
    slot_out = attend(slot_query.flatten(0, 1), joined(*keys), joined(*values), attn_mask=pack.slot_bias.to(dtype))
    slot_out = slot_out.view(batch, slots, heads, width, dim).transpose(1, 2).flatten(2, 3)
    return torch.cat([memory_out, slot_out], 2).transpose(1, 2), None


AttentionInterface.register(NAME, packed_attention)
