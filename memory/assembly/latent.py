"""From new rows to the blocks they choose: the pass that makes their queries, the boxes, and the retrieval."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from memory.block import KVBlock
from memory.boxes import Boxes, BoxIndex
from memory.clock import Clock
from memory.engine.engine import Engine
from memory.stages import Filling, LatentRetrieval, Unit


class LatentChoice:
    """The boxes of an assembler's blocks, and the choice among them.

    Query states come from a pass of their own, of the new rows behind the context alone: which memory they will see is
    just what is being asked.
    """

    def __init__(self, engine: Engine, retrieval: LatentRetrieval) -> None:
        self._engine, self.retrieval = engine, retrieval
        self._layers = retrieval.voters(engine.spec.layers)
        spec, device = engine.spec, engine.decoder.device
        dtype = torch.promote_types(spec.dtype, torch.float32)
        self.index = BoxIndex(self._layers, spec.kv_heads, spec.head_dim, dtype, device)

    @property
    def per_layer(self) -> bool:
        return self.retrieval.capabilities.per_layer

    def choose(self, context: KVBlock | None, token_ids: Sequence[int], clock: Clock) -> tuple[list[int], int]:
        """Numbers of the blocks that ``token_ids`` choose, rising, and the token-layers it took to ask."""
        if self.retrieval.takes_all(self.index):
            return list(range(len(self.index))), 0
        with clock.part("ask"):
            queries = self._engine.query_states(context, token_ids, self._layers)
        return self.retrieval.choose(queries, self.index), len(token_ids) * (self._layers[-1] + 1)


class NamedChoice:
    """A choice among blocks that come and go, each with a name of its own."""

    def __init__(self, engine: Engine, retrieval: LatentRetrieval) -> None:
        self._latent = LatentChoice(engine, retrieval)
        self._names: list[str] = []

    def choose(
        self, blocks: Sequence[KVBlock], context: KVBlock | None, token_ids: Sequence[int], clock: Clock
    ) -> tuple[set[str], int]:
        """Names of those of ``blocks`` that ``token_ids`` choose, and the token-layers it took to ask."""
        given, index = {block.identity: block for block in blocks}, self._latent.index
        index.keep([number for number, name in enumerate(self._names) if name in given])
        self._names = [name for name in self._names if name in given]
        boxed = set(self._names)
        new = [name for name in given if name not in boxed]
        if new:
            index.append(Boxes.around([given[name].k for name in new], index.layers))
        self._names += new
        numbers, asked = self._latent.choose(context, token_ids, clock)
        return {self._names[number] for number in numbers}, asked


class LayerSlots:
    """Rows that at every layer hold the blocks which the layer's own queries choose; all blocks are of one size."""

    def __init__(self, latent: LatentChoice, start: int, size: int, block: Callable[[int], KVBlock]) -> None:
        """:param block: the block of a number"""
        self._latent, self._block = latent, block
        count = size * min(latent.retrieval.most(size), len(latent.index))
        self.rows = slice(start, start + count)
        self.unit = Unit("slots", (0,) * count, ())  # no token is at home here: it is another one at every layer

    def fill(self, layer: int, query: torch.Tensor) -> Filling:
        numbers = self._latent.retrieval.select_layer(layer, query, self._latent.index)
        blocks = [self._block(number) for number in numbers]
        k, v = (torch.cat([getattr(block, side)[layer] for block in blocks], 1) for side in ("k", "v"))
        return Filling(tuple(numbers), k, v)
