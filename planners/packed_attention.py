"""Attention over packs: slots see the memory and themselves, in two batched matmuls instead of one dense mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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

    ids, positions, labels: (B, M + S*Q); memory_bias: (B, 1, M, M); slot_bias: (B, 1, S, 1, M); own_bias: (Q, Q).
    One slot that goes on where one memory ends is ``causal``: nothing is padded, and the biases are empty.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    labels: torch.Tensor
    memory_bias: torch.Tensor
    slot_bias: torch.Tensor
    own_bias: torch.Tensor
    memory: int
    slots: int
    kinds: tuple[tuple[str, ...], ...]
    causal: bool = False

    def to(self, device: torch.device | str) -> Batch:
        moved = {
            name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in vars(self).items()
        }
        return Batch(**moved)


def rounded(length: int, unit: int = 16) -> int:
    return -(-length // unit) * unit


def collate(packs: Sequence[Pack], bos: int, pad: int, dtype: torch.dtype = torch.bfloat16) -> Batch:
    """Pad packs to a batch. The memory starts with the BOS token, as the context prefix does at run time."""
    if len(packs) == 1 and len(packs[0].slots) == 1 and not packs[0].slots[0].hidden:
        return _alone(packs[0], bos, dtype)
    memory = rounded(1 + max(pack.memory_tokens for pack in packs))
    slots = max(len(pack.slots) for pack in packs)
    width = rounded(max(len(slot.ids) for pack in packs for slot in pack.slots))
    rows = memory + slots * width
    ids = torch.full((len(packs), rows), pad)
    labels = torch.full((len(packs), rows), IGNORE)
    positions = torch.zeros(len(packs), rows, dtype=torch.long)
    slot_bias = torch.full((len(packs), 1, slots, 1, memory), HIDE, dtype=dtype)
    real = torch.zeros(len(packs), memory, dtype=torch.bool)
    for b, pack in enumerate(packs):
        start = 1
        ids[b, 0] = bos
        places: dict[str, slice] = {}
        for name, tokens in pack.memory:
            places[name] = slice(start, start + len(tokens))
            ids[b, places[name]] = torch.tensor(tokens)
            start += len(tokens)
        real[b, :start] = True
        positions[b, :memory] = torch.arange(memory)
        for s, slot in enumerate(pack.slots):
            first = memory + s * width
            ids[b, first : first + len(slot.ids)] = torch.tensor(slot.ids)
            labels[b, first : first + len(slot.ids)] = torch.tensor(slot.labels)
            positions[b, first : first + width] = torch.arange(start, start + width)
            slot_bias[b, 0, s, 0, :start] = 0
            for name in slot.hidden:
                slot_bias[b, 0, s, 0, places[name]] = HIDE
    causal = torch.ones(memory, memory, dtype=torch.bool).tril()
    visible = (causal & real[:, None, :]) | torch.eye(memory, dtype=torch.bool)
    memory_bias = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, HIDE)[:, None]
    own = torch.zeros(width, width, dtype=dtype).masked_fill_(~torch.ones(width, width, dtype=torch.bool).tril(), HIDE)
    kinds = tuple(tuple(slot.kind for slot in pack.slots) for pack in packs)
    return Batch(ids, positions, labels, memory_bias, slot_bias, own, memory, slots, kinds)


def _alone(pack: Pack, bos: int, dtype: torch.dtype) -> Batch:
    (slot,) = pack.slots
    told = [bos, *(token for _, ids in pack.memory for token in ids)]
    ids, labels = torch.tensor([[*told, *slot.ids]]), torch.tensor([[IGNORE] * len(told) + list(slot.labels)])
    nothing = torch.zeros(0, dtype=dtype)
    places = torch.arange(ids.shape[1])[None]
    return Batch(ids, places, labels, nothing, nothing, nothing, len(told), 1, ((slot.kind,),), causal=True)


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
    query, key, value = (query * scaling).to(dtype), key.to(dtype), value.to(dtype)
    if pack.causal:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=1.0).transpose(1, 2), None
    batch, heads, _, dim = query.shape
    memory, slots = pack.memory, pack.slots
    memory_keys, memory_values = key[:, :, :memory], value[:, :, :memory]
    weights = (query[:, :, :memory] @ memory_keys.transpose(2, 3) + pack.memory_bias.to(dtype)).softmax(-1)
    memory_out = weights @ memory_values
    split = lambda x: x[:, :, memory:].reshape(batch, heads, slots, -1, dim)  # noqa: E731
    slot_query, slot_key, slot_value = split(query), split(key), split(value)
    width = slot_query.shape[3]
    to_memory = (query[:, :, memory:] @ memory_keys.transpose(2, 3)).view(batch, heads, slots, width, memory)
    to_memory = to_memory + pack.slot_bias.to(dtype)
    to_own = slot_query @ slot_key.transpose(3, 4) + pack.own_bias.to(dtype)
    weights = torch.cat([to_memory, to_own], -1).softmax(-1)
    slot_out = weights[..., :memory].reshape(batch, heads, slots * width, memory) @ memory_values
    slot_out = slot_out + (weights[..., memory:] @ slot_value).reshape(batch, heads, slots * width, dim)
    return torch.cat([memory_out, slot_out], 2).transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, packed_attention)
