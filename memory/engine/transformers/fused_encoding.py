"""Units that are encoded while the prompt that reads them is computed: one pass over the model's weights, not two."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from keep_agent.errors import ConfigError
from memory.engine.attention.function import CoupledPass, PromptPass
from memory.engine.attention.layer_attention import AttentionHook
from memory.engine.attention.rope import Angles, at_rows
from memory.engine.transformers.decoder import Decoder
from memory.engine.transformers.encode import Pack, place_layer
from memory.kv_cache.block import KVBlock, resting
from memory.kv_cache.dense import DenseCache
from memory.prompt.layout import Layout, Placement


class FusedEncoding:
    """A prompt's units without a block, each seeing itself and ``seen``: they go through every layer before it does.

    A layer's keys and values of theirs are written into the prompt's cache before its attention, as if they had been
    loaded; rows of the prompt that are computed there overwrite them. Units of the same identity are encoded once. One
    of them may see more: what its placement says it is ``behind``.
    """

    @classmethod
    def of(
        cls, decoder: Decoder, layout: Layout, cache: DenseCache, angles: Angles, seen: KVBlock | None
    ) -> FusedEncoding | None:
        """Those of ``layout``, whose rows have ``angles`` in ``cache``; None if there are none."""
        placed = [placement for placement in layout.placements if placement.fused]
        return cls(decoder, placed, cache, angles, seen) if placed else None

    def __init__(
        self, decoder: Decoder, placed: Sequence[Placement], cache: DenseCache, angles: Angles, seen: KVBlock | None
    ) -> None:
        self.runs = [slice(placement.start, placement.stop) for placement in placed]  # prompt rows
        ordered = sorted(placed, key=lambda placement: placement.behind is None)
        units = {placement.fused: placement.unit.token_ids for placement in ordered}
        self._pack = Pack(decoder, list(units.values()), seen, ordered[0].behind)
        self._decoder, self._cache = decoder, cache
        self._names, self._last = list(units), decoder.spec.layers - 1
        first = self._pack.rows.start
        starts = dict(zip(units, accumulate(map(len, units.values()), initial=first), strict=False))
        rows, source = [], []
        for placement in placed:
            rows += range(placement.start, placement.stop)
            source += range(starts[placement.fused], starts[placement.fused] + len(placement.unit.token_ids))
        self._rows, self._source = (torch.tensor(numbers, device=decoder.device) for numbers in (rows, source))
        self._angles = at_rows(angles, self._rows)
        self._mixed: torch.Tensor | None = None
        self._joined: tuple[Angles, Angles] | None = None
        self._attended, self._fed = -1, 0  # the last layer whose attention is done, and how many layers are done

    def attend(
        self, layer: int, hidden: torch.Tensor, state: PromptPass, hook: AttentionHook | None = None
    ) -> torch.Tensor:
        """The layer's first half of the prompt's rows ``hidden`` (1, rows, hidden), and of these before them."""
        rows, pack = hidden.shape[1], self._pack
        joint = CoupledPass(state, pack.state, {} if state.bare else self._behind(state.angles), self._place)
        mixed = self._decoder.attend(layer, torch.cat([hidden, pack.hidden], 1), joint, hook)
        self._attended = layer
        self._mixed = mixed[:, rows:]
        return mixed[:, :rows]

    def feed(self, layer: int, mixed: torch.Tensor) -> torch.Tensor:
        """The layer's other half of the prompt's rows ``mixed`` (1, rows, hidden), and of these."""
        out = self._decoder.feed(layer, torch.cat([mixed, self._mixed], 1))
        self._pack.hidden, self._fed = out[:, mixed.shape[1] :], layer + 1
        return out[:, : mixed.shape[1]]

    def close(self) -> None:
        """The last layer."""
        self._pack.close()
        self._place(self._last)

    def kv(self, layer: int, rows: torch.Tensor, kinds: str) -> tuple[torch.Tensor, ...]:
        """Per kind (kv_heads, len(rows), head_dim): unrotated K, or V, of prompt rows, of a layer up to the next one.

        :raises ConfigError: a row is none of these units', or the layer is further up
        """
        place = torch.searchsorted(self._rows, rows).clamp(max=self._rows.numel() - 1)
        if layer > max(self._attended, self._fed) or not torch.equal(self._rows[place], rows):
            raise ConfigError(f"layer {layer} of some rows asked for is in no block, and not computed yet")
        index = self._source[place]
        if layer > self._attended:  # its attention is still to come
            made = self._decoder.bare_kv(layer, self._pack.hidden, kinds)
            return tuple(x[:, index - self._pack.rows.start] for x in made)
        own = {"k": self._pack.cache.raw, "v": self._pack.cache.v}
        return tuple(own[kind][layer, 0][:, index] for kind in kinds)

    def blocks(self) -> tuple[KVBlock, ...]:
        """What was encoded, after `close`."""
        named = zip(self._names, self._pack.pairs(), strict=True)
        return tuple(KVBlock(name, resting(k), resting(v)) for name, (k, v) in named)

    def _behind(self, angles: Angles) -> Angles:
        """``angles`` of a pass over the prompt, and of these rows, which stay unmoved; made anew for another pass."""
        if self._joined is None or self._joined[0] is not angles:
            own = self._decoder.unmoved(self._pack.state.count)
            both = {key: tuple(torch.cat(pair, 1) for pair in zip(of, own, strict=True)) for key, of in angles.items()}
            self._joined = angles, both
        return self._joined[1]

    def _place(self, layer: int) -> None:
        own = self._pack.cache
        keys, values = own.raw[layer][:, :, self._source], own.v[layer][:, :, self._source]
        place_layer(self._decoder, self._cache, layer, self._rows, self._angles, keys, values)
