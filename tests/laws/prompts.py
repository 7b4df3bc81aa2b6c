"""Prompts of random tokens over encoded blocks, recompute stages for tests, and a model with a broken weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from memory.engine.base import Engine
from memory.kv_cache.block import KVBlock
from memory.prompt.layout import Layout, Placement, SegmentSpan, Unit
from memory.recompute.first_tokens import FirstTokens
from memory.recompute.multi_hop import MultiHop, Schedule
from memory.recompute.none import Nothing
from memory.recompute.sparse_query import SparseQuery
from memory.recompute.value_deviation import ValueDeviation
from memory.stages import Capabilities, Probe, Recompute

LENGTHS = (20, 31, 17, 26)
SELECTIVE: dict[str, Recompute] = {
    "none": Nothing(),
    "multi_hop": MultiHop(Schedule("linear", 0.4)),
    "multi_hop_both": MultiHop(Schedule(average=0.4), direction="both"),
    "first_tokens": FirstTokens(k=4, last_k=2),
    "value_deviation": ValueDeviation(0.4),
    "key_deviation": ValueDeviation(0.4, deviation="kv", selection="single"),
    "sparse_query": SparseQuery(boundary=0.4, block=3),
}


def tokens(count: int, seed: int, vocab: int = 512) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab, (count,), generator=generator).tolist()


def relative(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference relative to the largest expected magnitude, for tensors on any devices."""
    actual, expected = actual.cpu(), expected.cpu()
    return float((actual - expected).abs().max() / expected.abs().max())


@torch.no_grad()
def eager_weights(engine: Engine, ids: Sequence[int], mask: Any = None) -> list[torch.Tensor]:
    """Return transformers' attention weights (heads, rows, keys) per layer."""
    plain = engine.plain
    before = plain.config._attn_implementation
    plain.set_attn_implementation("eager")
    out = plain(torch.tensor([ids]), attention_mask=mask, output_attentions=True, use_cache=False)
    plain.set_attn_implementation(before)
    return [weights[0] for weights in out.attentions]


@dataclass(frozen=True)
class Prompt:
    """Token ids of the context, the units and the query, with their layout."""

    units: tuple[tuple[int, ...], ...]
    query: tuple[int, ...]
    context: tuple[int, ...] = ()
    first_position: int = 0

    @classmethod
    def random(cls, lengths: Sequence[int] = LENGTHS, query: int = 12, context: int = 0, seed: int = 0) -> Prompt:
        units = tuple(tuple(tokens(n, seed + 10 + i)) for i, n in enumerate(lengths))
        return cls(units, tuple(tokens(query, seed + 1)), tuple(tokens(context, seed + 2)))

    @property
    def ids(self) -> torch.Tensor:
        return torch.tensor([*self.context, *(token for unit in self.units for token in unit), *self.query])

    @property
    def starts(self) -> list[int]:
        return [len(self.context) + sum(map(len, self.units[:i])) for i in range(len(self.units))]

    def context_block(self, engine: Engine) -> KVBlock | None:
        return engine.encode([(None, self.context)])[0] if self.context else None

    def blocks(self, engine: Engine) -> list[KVBlock]:
        context = self.context_block(engine)
        return engine.encode([(context, unit) for unit in self.units])

    def layout(self, blocks: Sequence[KVBlock | None], exact: int = 0) -> Layout:
        """Lay out the prompt; units without a block are fresh, and the first ``exact`` units are exact."""
        ids, context = self.ids, len(self.context)
        owner = torch.full((ids.numel(),), -1)
        fresh = torch.zeros(ids.numel(), dtype=torch.bool)
        placements, spans = [], []
        for i, (unit, start, block) in enumerate(zip(self.units, self.starts, blocks, strict=True)):
            stop = start + len(unit)
            whole = Unit("segment", unit, (SegmentSpan(f"s{i}", 0, len(unit)),))
            placements.append(Placement(whole, start, block, exact=i < exact))
            spans.append(SegmentSpan(f"s{i}", start, stop))
            owner[start:stop] = i
            fresh[start:stop] = block is None
        fresh[-len(self.query) :] = True
        positions = torch.arange(ids.numel()) + self.first_position
        query = ids.numel() - len(self.query)
        return Layout(ids, positions, context, query, tuple(placements), tuple(spans), owner, fresh)


@dataclass
class Script:
    """Recompute stage that reads its active rows from a list, one entry per layer."""

    rows: Sequence[torch.Tensor]
    capabilities: ClassVar[Capabilities] = Capabilities(exact=False)

    def first(self, layout: Layout, layers: int) -> torch.Tensor:
        return self.rows[0].to(layout.positions.device)

    def narrow(self, layer: int, active: torch.Tensor, probe: Probe) -> torch.Tensor:
        return self.rows[layer + 1].to(active.device)


def shrinking(layout: Layout, layers: int, share: float = 0.7, seed: int = 0) -> Script:
    """Script a stage that drops memory rows at random at each layer and keeps fresh rows."""
    generator = torch.Generator().manual_seed(seed)
    active, rows = torch.arange(layout.context, layout.rows), []
    for _ in range(layers):
        rows.append(active)
        stays = layout.fresh[active] | (torch.rand(active.numel(), generator=generator) < share)
        active = active[stays]
    return Script(rows)


class Always:
    capabilities: ClassVar[Capabilities] = Capabilities()

    def __init__(self, skip: int = 0) -> None:
        self.skip = skip

    def first(self, layout: Layout, layers: int) -> torch.Tensor:
        return torch.arange(self.skip, layout.rows, device=layout.positions.device)

    def narrow(self, layer: int, active: torch.Tensor, probe: Probe) -> torch.Tensor:
        return active


class RecordingStage:
    def __init__(self, stage: Recompute) -> None:
        self.stage, self.capabilities = stage, stage.capabilities
        self.active: list[torch.Tensor] = []

    def first(self, layout: Layout, layers: int) -> torch.Tensor:
        rows = self.stage.first(layout, layers)
        self.active = [rows.cpu()]
        return rows

    def narrow(self, layer: int, active: torch.Tensor, probe: Probe) -> torch.Tensor:
        rows = self.stage.narrow(layer, active, probe)
        self.active.append(rows.cpu())
        return rows


@contextmanager
def broken(engine: Engine, value: float, layer: int | None = None) -> Iterator[None]:
    """Within the context, set one weight of the norm in ``layer``, or of the norm before the head, to ``value``."""
    model = engine.decoder.module.model  # the engine's copy; on a GPU the references use another one
    weight = (model.norm if layer is None else model.layers[layer].input_layernorm).weight.data
    original = weight[3].item()
    weight[3] = value
    try:
        yield
    finally:
        weight[3] = original
