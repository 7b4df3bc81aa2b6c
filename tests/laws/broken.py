"""A model of which one weight is no number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from memory.engine.base import Engine


@contextmanager
def broken(engine: Engine, value: float, layer: int | None = None) -> Iterator[None]:
    """One number of a norm, of a ``layer`` or before the head, is ``value`` in the block."""
    model = engine.decoder.module.model  # where the engine computes: elsewhere than its references' on a GPU
    weight = (model.norm if layer is None else model.layers[layer].input_layernorm).weight.data
    kept = weight[3].item()
    weight[3] = value
    try:
        yield
    finally:
        weight[3] = kept
