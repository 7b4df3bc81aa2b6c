"""Model with a weight that is not finite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from memory.engine.base import Engine


@contextmanager
def broken(engine: Engine, value: float, layer: int | None = None) -> Iterator[None]:
    """Set one weight of a norm, in a ``layer`` or before the head, to ``value`` within the context."""
    model = engine.decoder.module.model  # the engine's copy; on a GPU the references use another one
    weight = (model.norm if layer is None else model.layers[layer].input_layernorm).weight.data
    original = weight[3].item()
    weight[3] = value
    try:
        yield
    finally:
        weight[3] = original
