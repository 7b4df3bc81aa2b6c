"""Finite logits (law 11): whoever leaves the engine with a decision has made it behind numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from keep_agent.errors import ModelError

if TYPE_CHECKING:
    from memory.kv_cache.dense import WorkingCache


def are_finite(logits: torch.Tensor) -> torch.Tensor:
    """Whether all of ``logits`` are finite, as a tensor on their device: nobody waits for it yet."""
    return torch.stack(logits.aminmax()).isfinite().all()


def check_finite(logits: torch.Tensor, dtype: torch.dtype, *caches: WorkingCache) -> None:
    """Raises ModelError unless all of ``logits`` are finite; ``dtype`` is the model's, ``caches`` hold the rows."""
    if not bool(are_finite(logits)):
        raise not_finite(dtype, *caches)


def most_likely(logits: torch.Tensor, dtype: torch.dtype, *caches: WorkingCache) -> int:
    """The token with the largest of ``logits`` (vocab,) behind ``caches``. The device is waited for once.

    :raises ModelError: they are not finite
    """
    token, finite = torch.stack([logits.argmax(), are_finite(logits).long()]).tolist()
    if not finite:
        raise not_finite(dtype, *caches)
    return token


def not_finite(dtype: torch.dtype, *caches: WorkingCache) -> ModelError:
    """What to say of logits that are no numbers; the rows that made them are erased."""
    for cache in caches:
        cache.erase()
    name = str(dtype).removeprefix("torch.")
    finer = "fetch its weights again" if dtype in (torch.float32, torch.float64) else "set model.dtype=float32"
    return ModelError(
        f"the model's logits are not finite in {name}, so nothing can be decided by them: its weights are damaged, or "
        f"{name} cannot hold what it computes; {finer}, or use another model."
    )
