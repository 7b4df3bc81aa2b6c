"""Units that are encoded while the prompt that reads them is computed: one pass over the model's weights, not two."""

from __future__ import annotations

from itertools import accumulate

import torch

from memory.block import KVBlock, resting
from memory.engine.cache import DenseCache
from memory.engine.decoder import Decoder
from memory.engine.encode import Pack
from memory.engine.rope import Angles
from memory.stages import Layout


class Carried:
    """A prompt's units without a block, each seeing itself and ``seen``: they go through every layer before it does.

    A layer's keys and values of theirs are written into the prompt's cache before its attention, as if they had been
    loaded; rows of the prompt that are computed there overwrite them. Units of the same identity are encoded once.
    """

    def __init__(
        self, decoder: Decoder, layout: Layout, cache: DenseCache, angles: Angles, seen: KVBlock | None
    ) -> None:
        placed = [placement for placement in layout.placements if placement.carried]
        units = {placement.carried: placement.unit.token_ids for placement in placed}
        self._decoder, self._cache, self._pack = decoder, cache, Pack(decoder, list(units.values()), seen)
        self._names, self._last = list(units), decoder.spec.layers - 1
        first = self._pack.rows.start
        starts = dict(zip(units, accumulate(map(len, units.values()), initial=first), strict=False))
        rows, source = [], []
        for placement in placed:
            rows += range(placement.start, placement.stop)
            source += range(starts[placement.carried], starts[placement.carried] + len(placement.unit.token_ids))
        self._rows, self._source = (torch.tensor(numbers, device=decoder.device) for numbers in (rows, source))
        self._angles = {key: (cos[:, self._rows], sin[:, self._rows]) for key, (cos, sin) in angles.items()}
        self._mixed: torch.Tensor | None = None

    def attend(self, layer: int) -> None:
        """Up to the layer's attention."""
        self._mixed = self._pack.attend(layer)
        self._place(layer)

    def feed(self, layer: int, mixed: torch.Tensor) -> torch.Tensor:
        """The layer's other half of the prompt's rows ``mixed`` (1, rows, hidden), and of these."""
        out = self._decoder.feed(layer, torch.cat([mixed, self._mixed], 1))
        self._pack.hidden = out[:, mixed.shape[1] :]
        return out[:, : mixed.shape[1]]

    def close(self) -> None:
        """The last layer."""
        self._pack.close()
        self._place(self._last)

    def blocks(self) -> tuple[KVBlock, ...]:
        """What was encoded, after `close`."""
        named = zip(self._names, self._pack.pairs(), strict=True)
        return tuple(KVBlock(name, resting(k), resting(v)) for name, (k, v) in named)

    def _place(self, layer: int) -> None:
        own = self._pack.cache
        keys, values = own.raw[layer][:, :, self._source], own.v[layer][:, :, self._source]
        self._cache.write_raw(layer, self._rows, keys)
        self._cache.write(layer, self._rows, self._decoder.rope.rotate_layers(keys, self._angles, layer), values)
