"""Full reuse with transformers' own forward: each unit is encoded alone after the context; only the query is new."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import DynamicCache, PreTrainedModel


def turn(model: PreTrainedModel, layer: int, keys: torch.Tensor, by: int) -> torch.Tensor:
    """Rotate already rotated ``keys`` (..., rows, head_dim) by ``by`` more positions, as complex numbers."""
    rotary, kinds = model.model.rotary_emb, getattr(model.config, "layer_types", None)
    layer_frequencies = getattr(rotary, f"{kinds[layer]}_inv_freq", None) if kinds else None
    frequencies = rotary.inv_freq if layer_frequencies is None else layer_frequencies
    half = keys.shape[-1] // 2
    pairs = torch.complex(keys[..., :half].double(), keys[..., half:].double())
    pairs = pairs * torch.polar(torch.ones(half).double(), frequencies.double() * by)
    return torch.cat([pairs.real, pairs.imag], -1).to(keys.dtype)


def dense_mask(
    model: PreTrainedModel, visible: torch.Tensor, rows: torch.Tensor, keys: torch.Tensor
) -> torch.Tensor | dict[str, torch.Tensor]:
    """Return additive mask(s) of ``visible`` (rows, keys) for the family's forward, with its sliding windows."""

    def additive(window: int | None) -> torch.Tensor:
        allowed = visible if window is None else visible & (keys[None] > rows[:, None] - window)
        return torch.zeros(1, 1, *allowed.shape, dtype=model.dtype).masked_fill(~allowed, torch.finfo(model.dtype).min)

    window, family = getattr(model.config, "sliding_window", None), model.config.model_type
    if family in ("llama", "mistral", "qwen3_moe"):
        return additive(window)
    return {"full_attention": additive(None), "sliding_attention": additive(window)}


@torch.no_grad()
def full_reuse(
    model: PreTrainedModel, context: Sequence[int], units: Sequence[Sequence[int]], query: Sequence[int],
    preceding: Sequence[Sequence[int]] = (),
) -> torch.Tensor:  # fmt: skip
    """Return logits (query rows, vocab) without recomputation; ``preceding``: tokens between context and each unit."""
    layers, before = model.config.num_hidden_layers, len(context)
    parts: list[list[tuple[torch.Tensor, torch.Tensor]]] = []
    start = before
    for number, unit in enumerate(units):
        more = preceding[number] if preceding else ()
        first = before + len(more)
        alone = _cache_of(model, [*context, *more, *unit])
        if not parts and before:
            parts.append([(k[:, :, :before], v[:, :, :before]) for k, v in alone])
        tail = [(k[:, :, first:], v[:, :, first:]) for k, v in alone]
        parts.append([(turn(model, layer, k, start - first), v) for layer, (k, v) in enumerate(tail)])
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
