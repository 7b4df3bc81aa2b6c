"""Survivors numbered anew: what compressors that pack their cache do, for comparison with rows that stay."""

from __future__ import annotations

import torch

from memory.engine.attention.rope import Angles
from memory.engine.transformers.decoder import Decoder
from memory.kv_cache.paged import PagedCache


@torch.inference_mode()
def compact(decoder: Decoder, cache: PagedCache) -> None:
    """Give the live rows of ``cache`` positions 0, 1, ..., and turn their keys to them."""
    rows = torch.arange(cache.length, device=decoder.device)
    moved = rows[cache.positions != rows]
    if not moved.numel():
        return
    first = int(moved[0])
    old, new = cache.positions[first:], rows[first:]
    top = int(old[-1]) + 1
    keys = torch.stack([cache.keys(layer)[:, first:] for layer in range(decoder.spec.layers)])
    bare = decoder.rope.rotate_layers(keys.double(), _back(decoder.rope.at(old, top)))
    turned = decoder.rope.rotate_layers(bare, _doubled(decoder.rope.at(new, top)))
    cache.renumber(first, turned.to(keys.dtype))


def _back(angles: Angles) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The inverse rotation: cos and sin may carry a factor (yarn), which has to go as well."""
    inverse = {}
    for key, (cos, sin) in _doubled(angles).items():
        factor = cos.square() + sin.square()
        inverse[key] = cos / factor, -sin / factor
    return inverse


def _doubled(angles: Angles) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    return {key: (cos.double(), sin.double()) for key, (cos, sin) in angles.items()}
