"""From new rows to the blocks they choose: the pass that makes their queries, the boxes, and the retrieval."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import torch

from memory.engine.transformers.engine import Engine
from memory.kv_cache.block import KVBlock
from memory.kv_cache.key_boxes import KeyBoxes, KeyBoxIndex
from memory.reports.timing import StepTimer
from memory.stages import LatentRetrieval, Unit


class BlockChoice:
    """The boxes of an assembler's blocks, and the choice among them.

    Query states come from a pass of their own, of the new rows behind the context alone: which memory they will see is
    just what is being asked.
    """

    def __init__(self, engine: Engine, retrieval: LatentRetrieval) -> None:
        self._engine, self.retrieval = engine, retrieval
        self._layers = retrieval.voters(engine.spec.layers)
        spec, device = engine.spec, engine.decoder.device
        dtype = torch.promote_types(spec.dtype, torch.float32)
        self.index = KeyBoxIndex(self._layers, spec.kv_heads, spec.head_dim, dtype, device)

    @property
    def per_layer(self) -> bool:
        return self.retrieval.capabilities.per_layer

    def choose(self, context: KVBlock | None, token_ids: Sequence[int], clock: StepTimer) -> tuple[list[int], int]:
        """Block numbers that ``token_ids`` choose, rising, one for each copy, and the token-layers it took to ask."""
        if self.retrieval.takes_all(self.index):
            return [number for number, copies in enumerate(self.index.copies) for _ in range(copies)], 0
        with clock.part("ask"):
            queries = self._engine.query_states(context, token_ids, self._layers)
        return self.retrieval.choose(queries, self.index), len(token_ids) * (self._layers[-1] + 1)


class UnitChoice:
    """A choice among units whose blocks come and go, each with a name of its own.

    Units of the same text share a block, but each of them takes up rows of the prompt.
    """

    def __init__(self, engine: Engine, retrieval: LatentRetrieval) -> None:
        self._latent = BlockChoice(engine, retrieval)
        self._names: list[str] = []

    def choose(
        self,
        names: Sequence[str],
        blocks: Mapping[str, KVBlock],
        context: KVBlock | None,
        token_ids: Sequence[int],
        clock: StepTimer,
    ) -> tuple[list[int], int]:
        """Numbers of the units that ``token_ids`` choose, rising, and the token-layers it took to ask.

        :param names: of each unit's block in ``blocks``; a unit without one is always in
        """
        copies, index = Counter(filter(None, names)), self._latent.index
        index.keep([number for number, name in enumerate(self._names) if name in copies])
        self._names = [name for name in self._names if name in copies]
        boxed = set(self._names)
        new = [name for name in copies if name not in boxed]
        if new:
            index.append(KeyBoxes.around([blocks[name].k for name in new], index.layers))
        self._names += new
        index.copies = [copies[name] for name in self._names]
        numbers, asked = self._latent.choose(context, token_ids, clock)
        return _latest(names, Counter(self._names[number] for number in numbers)), asked


def _latest(names: Sequence[str], wanted: Counter[str]) -> list[int]:
    """Where in ``names`` those are that have none, and of each other as many as are ``wanted``, the last ones."""
    found = []
    for number in reversed(range(len(names))):
        name = names[number]
        if not name or wanted[name]:
            wanted[name] -= 1
            found.append(number)
    return found[::-1]


class LayerSlots:
    """Rows that at every layer hold the blocks which the layer's own queries choose; all blocks are of one size."""

    def __init__(self, latent: BlockChoice, start: int, size: int, block: Callable[[int], KVBlock]) -> None:
        """:param block: the block of a number"""
        self._latent, self.block = latent, block
        count = size * min(latent.retrieval.most(size), len(latent.index))
        self.rows = slice(start, start + count)
        self.unit = Unit("slots", (0,) * count, ())  # no token is at home here: it is another one at every layer

    def choose(self, layer: int, query: torch.Tensor) -> tuple[int, ...]:
        return tuple(self._latent.retrieval.select_layer(layer, query, self._latent.index))
