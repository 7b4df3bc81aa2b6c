"""What a retention stage wants to know of the passes over a cache: late queries, and how much attention rows had."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from memory.engine.kernels import Block, block_probabilities


@dataclass(frozen=True, slots=True)
class Columns:
    """Takes the weights of one block after another and keeps only their sums over heads and query rows, by key row."""

    blocks: Sequence[Block]
    totals: torch.Tensor  # (key rows,) float32
    taken: list[int]  # how many blocks have come

    def append(self, weights: torch.Tensor) -> None:
        """``weights`` (heads, rows, keys) of the next block."""
        block = self.blocks[len(self.taken)]
        self.taken.append(weights.shape[-1])
        sums = weights.sum((0, 1), dtype=torch.float32)
        self.totals[: block.prefix] += sums[: block.prefix]
        body = sums[block.prefix :][: self.totals.numel() - block.k0]  # the columns behind the last row are padding
        self.totals[block.k0 : block.k0 + body.numel()] += body


class Witness:
    """Looks on while rows are appended to one cache. Positions, not rows, name what it saw.

    :param recent: of so many last rows the queries are kept
    :param mass: whether to add up the attention every row receives, over layers, heads and querying rows
    """

    def __init__(self, recent: int = 0, mass: bool = False) -> None:
        self.recent, self.wants_mass = recent, mass
        self.places = torch.empty(0, dtype=torch.long)  # positions of the rows whose queries are kept
        self.queries: dict[int, torch.Tensor] = {}  # per layer (heads, kept rows, head_dim), rotated
        self.scales: dict[int, float] = {}  # per layer: what scores are multiplied by
        self.mass = torch.empty(0)  # (positions,) float32
        self._positions = self.places  # of all rows visible in this pass
        self._count = 0

    @contextmanager
    def watching(self, positions: torch.Tensor, count: int) -> Iterator[None]:
        """A pass as `begin` takes it; if it fails, queries that some layers saw and others did not are forgotten."""
        self.begin(positions, count)
        try:
            yield
        except BaseException:
            self.places, self.queries = self.places[:0], {}
            raise

    def begin(self, positions: torch.Tensor, count: int) -> None:
        """A pass over the last ``count`` of the rows at ``positions`` begins."""
        self._positions, self._count = positions, count
        self.places = torch.cat([self.places.to(positions), positions[-count:]])[-self.recent or positions.numel() :]
        if self.wants_mass:
            more = int(positions[-1]) + 1 - self.mass.numel()
            self.mass = torch.cat([self.mass.to(positions.device), torch.zeros(more, device=positions.device)])

    def columns(self, blocks: Sequence[Block]) -> Columns | None:
        """Where this pass's weights go, if they are wanted."""
        if not self.wants_mass:
            return None
        return Columns(blocks, torch.zeros(self._positions.numel(), device=self._positions.device), [])

    def see(
        self,
        layer: int,
        query: torch.Tensor,
        keys: torch.Tensor | None,
        columns: Columns | None,
        scale: float,
        softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> None:
        """One layer's rotated queries (1, heads, rows, head_dim) and keys (1, kv_heads, keys, head_dim).

        Keys are needed where ``columns`` are to be filled.
        """
        self.scales[layer] = scale
        if self.recent:
            new = query[0, :, -self.recent :]
            old = self.queries.get(layer)
            kept = new if old is None else torch.cat([old, new], 1)
            self.queries[layer] = kept[:, -self.places.numel() :].clone()
        if columns is None:
            return
        if not columns.taken:  # this device's kernel keeps no weights
            for block in columns.blocks:
                columns.append(block_probabilities(query * scale, block.take(keys[0]), block, softcap, sinks))
        self.mass[self._positions] += columns.totals

    def cut(self, position: int) -> None:
        """Forget the rows from ``position`` on; what they gave to others stays."""
        kept = self.places < position
        self.places = self.places[kept]
        self.queries = {layer: queries[:, kept] for layer, queries in self.queries.items()}
        self.mass = self.mass[:position]
