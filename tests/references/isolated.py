"""Full reuse with nothing but transformers' own forward: each unit alone behind its context, then the query."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import DynamicCache, PreTrainedModel


def turn(model: PreTrainedModel, layer: int, keys: torch.Tensor, by: int) -> torch.Tensor:
    """Rotate already rotated ``keys`` (..., rows, head_dim) on by ``by`` positions, as complex numbers."""
    rotary, kinds = model.model.rotary_emb, getattr(model.config, "layer_types", None)
    named = getattr(rotary, f"{kinds[layer]}_inv_freq", None) if kinds else None
    frequencies = rotary.inv_freq if named is None else named
    half = keys.shape[-1] // 2
    pairs = torch.complex(keys[..., :half].double(), keys[..., half:].double())
    turned = pairs * torch.polar(torch.ones(half).double(), frequencies.double() * by)
    return torch.cat([turned.real, turned.imag], -1).to(keys.dtype)


def dense_mask(
    model: PreTrainedModel, visible: torch.Tensor, rows: torch.Tensor, keys: torch.Tensor
) -> torch.Tensor | dict[str, torch.Tensor]:
    """Additive mask(s) of ``visible`` (rows, keys) as the family's forward takes them; positions cut sliding layers."""

    def additive(window: int | None) -> torch.Tensor:
        seen = visible if window is None else visible & (keys[None] > rows[:, None] - window)
        return torch.zeros(1, 1, *seen.shape, dtype=model.dtype).masked_fill(~seen, torch.finfo(model.dtype).min)

    window, family = getattr(model.config, "sliding_window", None), model.config.model_type
    if family in ("llama", "mistral", "qwen3_moe"):
        return additive(window)
    return {"full_attention": additive(None), "sliding_attention": additive(window)}


@torch.no_grad()
def full_reuse(
    model: PreTrainedModel,
    context: Sequence[int],
    units: Sequence[Sequence[int]],
    query: Sequence[int],
    behind: Sequence[Sequence[int]] = (),
) -> torch.Tensor:
    """(query rows, vocab) logits when no memory row is recomputed; ``behind``: what each unit saw, too."""
    layers, before = model.config.num_hidden_layers, len(context)
    parts: list[list[tuple[torch.Tensor, torch.Tensor]]] = []
    start = before
    for number, unit in enumerate(units):
        first = before + (len(behind[number]) if behind else 0)
        alone = _cache_of(model, [*context, *(behind[number] if behind else ()), *unit])
        if not parts and before:
            parts.append([(k[:, :, :before], v[:, :, :before]) for k, v in alone])
        moved = [(turn(model, i, k[:, :, first:], start - first), v[:, :, first:]) for i, (k, v) in enumerate(alone)]
        parts.append(moved)
        start += len(unit)
    cache = DynamicCache()
    for layer in range(layers):
        cache.update(*(torch.cat([part[layer][kind] for part in parts], 2) for kind in (0, 1)), layer)
    rows, keys = torch.arange(start, start + len(query)), torch.arange(start + len(query))
    mask = dense_mask(model, keys[None] <= rows[:, None], rows, keys)
    ids = torch.tensor([list(query)])
    return model(ids, attention_mask=mask, position_ids=rows[None], past_key_values=cache, use_cache=True).logits[0]


def _cache_of(model: PreTrainedModel, ids: Sequence[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    cache = DynamicCache()
    model(torch.tensor([list(ids)]), past_key_values=cache, use_cache=True)
    return [(layer.keys, layer.values) for layer in cache.layers]
