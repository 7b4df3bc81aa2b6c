"""Latent retrieval: selection of stored blocks by upper bounds on the attention from the new rows' queries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import mul

import torch

from keep_agent.errors import ConfigError, check_choice
from memory.kv_cache.key_boxes import KeyBoxIndex
from memory.segments.store import SegmentStore, prompt_order
from memory.stages import Capabilities

UNITS = ("blocks", "tokens")
NORMALISERS = ("softmax", "rank")
AGGREGATES = ("max", "sum")
BANDS = {"all": (0, 3), "early": (0, 1), "middle": (1, 2), "late": (2, 3), "each": (0, 3)}  # in thirds of the layers
DECIMALS = {torch.float32: 4, torch.float64: 9}  # scores are rounded, so that blocks of equal text tie
CHUNK = 64  # query tokens per tensor (heads, tokens, blocks), so that its memory is bounded


@dataclass(frozen=True)
class Latent:
    """Retrieval of MemArt ("KVCache-centric memory for LLM agents"): the ``top_k`` best blocks for the query's tokens.

    A box around a block's keys (before RoPE) gives an upper bound of a query token's product with any key. Bounds
    of each query token are normalised over all blocks: by ``softmax``, or as reciprocal ranks 1/(rank + ``constant``).
    The ``max`` or the ``sum`` over the query tokens is a block's score. As in the paper's formula, bounds are not
    divided by the root of head_dim, so the softmax is sharper than that of attention.

    The paper takes one set of blocks for all heads, and does not define how heads and layers combine. Here bounds are
    normalised for each head of each of ``layers``, summed, and then aggregated over tokens. ``layers`` are numbers,
    ``all``, or a third: ``early``, ``middle``, ``late``. With ``each``, every layer chooses for itself.

    ``unit=tokens``: ``top_k`` is a number of tokens, filled by the best blocks that still fit. Ties go to the earlier
    block. A block that occurs several times in the memory is ranked once; each chosen copy counts towards ``top_k``.
    """

    top_k: int = 128
    unit: str = "blocks"
    normalise: str = "softmax"
    aggregate: str = "max"
    constant: int = 60
    layers: str | Sequence[int] = "all"

    def __post_init__(self) -> None:
        if self.top_k < 1 or self.constant < 0:
            raise ConfigError(f"top_k={self.top_k}, constant={self.constant} are too small: use at least 1 and 0")
        for name, known in (("unit", UNITS), ("normalise", NORMALISERS), ("aggregate", AGGREGATES)):
            check_choice(name, getattr(self, name), known)
        if not (self.layers in BANDS if isinstance(self.layers, str) else _are_numbers(self.layers)):
            raise ConfigError(f"layers={self.layers!r} is unknown: use one of {', '.join(BANDS)}, or numbers: [3]")

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(exact=False, moves_blocks=True, latent=True, per_layer=self.layers == "each")

    def select(self, query: str, store: SegmentStore, budget: int) -> list[str]:
        """Return every segment in prompt order, because the choice is made later, among blocks."""
        return prompt_order(store.ids, store)

    def scoring_layers(self, layers: int) -> tuple[int, ...]:
        if isinstance(self.layers, str):
            first, last = (third * layers // 3 for third in BANDS[self.layers])
            return tuple(range(first, max(last, first + 1)))
        numbers = tuple(sorted(set(self.layers)))
        if not numbers or not 0 <= numbers[0] <= numbers[-1] < layers:
            raise ConfigError(f"layers={list(self.layers)} are not in the model: use numbers from 0 to {layers - 1}")
        return numbers

    def max_blocks(self, tokens: int) -> int:
        return self.top_k if self.unit == "blocks" else self.top_k // tokens

    def chooses_all(self, index: KeyBoxIndex) -> bool:
        return sum(map(mul, self._prices(index), index.copies)) <= self.top_k

    def choose(self, queries: Iterable[torch.Tensor], index: KeyBoxIndex) -> list[int]:
        return self._best(zip(index.layers, queries, strict=True), index)

    def select_layer(self, layer: int, query: torch.Tensor, index: KeyBoxIndex) -> list[int]:
        return self._best([(layer, query)], index)

    def _best(self, queries: Iterable[tuple[int, torch.Tensor]], index: KeyBoxIndex) -> list[int]:
        total: torch.Tensor | None = None
        for layer, query in queries:
            scores = torch.cat([self._scores(index.bound(layer, part)) for part in query.split(CHUNK, 1)])
            total = scores if total is None else torch.logaddexp(total, scores)
        block_scores = total.amax(0) if self.aggregate == "max" else total.logsumexp(0)
        ranking = _rounded(block_scores).argsort(descending=True, stable=True).tolist()
        return sorted(self._fill(ranking, index))

    def _scores(self, bound: torch.Tensor) -> torch.Tensor:
        """Normalise ``bound`` (heads, tokens, blocks), sum over heads, and return the logarithm (tokens, blocks).

        Logarithms still rank blocks whose softmax would underflow to zero.
        """
        bound = _rounded(bound)
        if self.normalise == "softmax":
            return bound.log_softmax(-1).logsumexp(0)
        order = bound.argsort(dim=-1, descending=True, stable=True)
        places = torch.arange(1, bound.shape[-1] + 1, device=bound.device).expand_as(order)
        ranks = torch.empty_like(order).scatter_(-1, order, places)
        return (1 / (ranks + self.constant).double()).sum(0).log()

    def _fill(self, ranking: Iterable[int], index: KeyBoxIndex) -> list[int]:
        room, numbers, prices = self.top_k, [], self._prices(index)
        for number in ranking:
            copies = min(index.copies[number], room // prices[number])
            room -= copies * prices[number]
            numbers += [number] * copies
            if not room:
                break
        return numbers

    def _prices(self, index: KeyBoxIndex) -> Sequence[int]:
        """Return, for each block, how much of ``top_k`` one copy of it takes."""
        return [1] * len(index) if self.unit == "blocks" else index.tokens


def _are_numbers(layers: object) -> bool:
    return isinstance(layers, Sequence) and all(isinstance(layer, int) for layer in layers)


def _rounded(x: torch.Tensor) -> torch.Tensor:
    return x.round(decimals=DECIMALS[x.dtype])
