"""Latent choice: stored blocks chosen by comparing the query states of new rows with boxes around the blocks' keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import torch

from memory.engine.base import Engine
from memory.kv_cache.block import KVBlock
from memory.kv_cache.key_boxes import KeyBoxes, KeyBoxIndex
from memory.prompt.layout import Unit
from memory.prompt.report import StepTimer
from memory.stages import LatentRetrieval


class BlockChoice:
    """Choice among the blocks of one session, by the bounding boxes of their keys.

    Before the memory is chosen, a separate pass computes query states of the new rows, which attend to the context.
    """

    def __init__(self, engine: Engine, retrieval: LatentRetrieval) -> None:
        self._engine, self.retrieval = engine, retrieval
        self._layers = retrieval.scoring_layers(engine.info.layers)
        info, device = engine.info, engine.device
        dtype = torch.promote_types(info.dtype, torch.float32)
        self.index = KeyBoxIndex(self._layers, info.kv_heads, info.head_dim, dtype, device)

    def choose(self, context: KVBlock | None, token_ids: Sequence[int], timer: StepTimer) -> tuple[list[int], int]:
        """Return ascending block numbers, one per copy in the prompt, and the rows x layers computed for the choice."""
        if self.retrieval.chooses_all(self.index):
            return [number for number, copies in enumerate(self.index.copies) for _ in range(copies)], 0
        with timer.part("ask"):
            queries = self._engine.query_states(context, token_ids, self._layers)
        return self.retrieval.choose(queries, self.index), len(token_ids) * (self._layers[-1] + 1)


class UnitChoice:
    """Choice among the units (segments encoded together) of a prompt, whose blocks are known by name.

    Units of the same text share a block, but each unit takes up rows of the prompt.
    """

    def __init__(self, engine: Engine, retrieval: LatentRetrieval) -> None:
        self._choice = BlockChoice(engine, retrieval)
        self._names: list[str] = []

    def choose(
        self,
        names: Sequence[str],
        blocks: Mapping[str, KVBlock],
        context: KVBlock | None,
        token_ids: Sequence[int],
        timer: StepTimer,
    ) -> tuple[list[int], int]:
        """Return ascending numbers of the units that the new rows ``token_ids`` choose, and the rows x layers computed.

        :param names: name of each unit's block in ``blocks``; a unit with an empty name is always chosen
        """
        copies, index = Counter(filter(None, names)), self._choice.index
        index.keep([number for number, name in enumerate(self._names) if name in copies])
        self._names = [name for name in self._names if name in copies]
        boxed = set(self._names)
        new = [name for name in copies if name not in boxed]
        if new:
            index.append(KeyBoxes.around([blocks[name].k for name in new], index.layers))
        self._names += new
        index.copies = [copies[name] for name in self._names]
        numbers, token_layers = self._choice.choose(context, token_ids, timer)
        return _latest(names, Counter(self._names[number] for number in numbers)), token_layers


def _latest(names: Sequence[str], copies: Counter[str]) -> list[int]:
    """Return the indices of all empty names, and for every other name its last ``copies[name]`` indices."""
    places = []
    for number in reversed(range(len(names))):
        name = names[number]
        if not name or copies[name]:
            copies[name] -= 1
            places.append(number)
    return places[::-1]


class RetrievedRows:
    """Prompt rows in which each layer puts the blocks that its own queries choose; all blocks are of one size."""

    def __init__(self, choice: BlockChoice, start: int, size: int, block: Callable[[int], KVBlock]) -> None:
        """:param block: function that reads a block by its number"""
        self._retrieval, self._index, self.block = choice.retrieval, choice.index, block
        count = size * min(choice.retrieval.max_blocks(size), len(choice.index))
        self.rows = slice(start, start + count)
        self.unit = Unit("slots", (0,) * count, ())  # placeholders: each layer has its own tokens in these rows

    def choose(self, layer: int, query: torch.Tensor) -> tuple[int, ...]:
        return tuple(self._retrieval.select_layer(layer, query, self._index))
