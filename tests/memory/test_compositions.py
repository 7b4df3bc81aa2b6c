"""Every choice of stages runs a few steps on a tiny model, or is refused at the start with a sentence."""

from __future__ import annotations

import random
from itertools import combinations, product
from typing import Any

import pytest
import torch

from keep_agent.errors import ConfigError
from memory.construction.fixed_blocks import FixedBlocks
from memory.construction.history import History
from memory.construction.per_segment import PerSegment
from memory.construction.prefix import Prefix
from memory.construction.segments import Segments
from memory.construction.static_dynamic import StaticDynamic
from memory.engine.engine import Engine
from memory.loading.layer_balanced import LayerBalanced
from memory.loading.next_layer import NextLayer
from memory.loading.serial import Serial
from memory.method import CALLS, MemoryMethod
from memory.recompute.first_tokens import FirstTokens
from memory.recompute.full import Full
from memory.recompute.multi_hop import MultiHop
from memory.recompute.none import Nothing
from memory.recompute.sparse_query import SparseQuery
from memory.recompute.value_deviation import ValueDeviation
from memory.retention.keep_all import KeepAll
from memory.retrieval.all import All
from memory.retrieval.embedding import Embedding
from memory.retrieval.latent import Latent
from memory.storage.ram import Ram
from tests.memory.sessions import GROUPING, close, episode, open_session, plain

STAGES: dict[str, tuple[Any, ...]] = {
    "retrieval": (All(), Embedding(), Latent(top_k=4), Latent(top_k=4, layers="each")),
    "construction": (
        PerSegment(), FixedBlocks(size=9), StaticDynamic(), Prefix(block_size=4), Segments(block_size=4),
        History(block_size=4),
    ),
    "recompute": (
        Full(), Nothing(), FirstTokens(k=2), ValueDeviation(ratio=0.4), SparseQuery(block=2, share=0.4), MultiHop(),
    ),
    "layout": ("memory", "append"),
    "loading": (Serial(), NextLayer(), LayerBalanced()),
    "storage": (None, 60_000),  # bytes: less than a house needs
    "retention": (KeepAll(),),
}  # fmt: skip
DRAWN = ("loading", "storage", "retention")  # every pair of choices occurs, not every product


def grid() -> list[dict[str, Any]]:
    """Products of what decides, with the rest drawn."""
    deciding = [name for name in STAGES if name not in DRAWN]
    rng = random.Random(0)
    products = (dict(zip(deciding, values, strict=True)) for values in product(*(STAGES[name] for name in deciding)))
    return [choice | {name: rng.choice(STAGES[name]) for name in DRAWN} for choice in products]


GRID = grid()


def build(choice: dict[str, Any]) -> MemoryMethod:
    stages = choice | {"storage": Ram() if choice["storage"] is None else Ram(budget_bytes=choice["storage"])}
    return MemoryMethod("composed", grouping=GROUPING, **stages)


def label(value: object) -> str:
    name = value if isinstance(value, str) else type(value).__name__
    return f"{name} per layer" if getattr(value, "layers", "") == "each" else name


def test_every_pair_of_choices_is_in_the_grid() -> None:
    for one, two in combinations(STAGES, 2):
        pairs = {(str(choice[one]), str(choice[two])) for choice in GRID}
        assert len(pairs) == len(STAGES[one]) * len(STAGES[two]), (one, two)


@pytest.mark.parametrize("choice", GRID, ids=lambda choice: "-".join(label(choice[name]) for name in choice))
def test_a_composition_runs_or_says_why_not(choice: dict[str, Any], engine: Engine) -> None:
    try:
        method = build(choice)
    except ConfigError as error:
        assert str(error).startswith("memory method 'composed': ") and " use " in str(error)
        return
    for prefill in episode(open_session(engine, method), 4):
        assert torch.isfinite(prefill.logits).all()
        counts = prefill.counts
        assert 0 < counts.computed_ratio <= 1 and 0 <= counts.recomputed_ratio <= 1
        assert counts.fresh_tokens + counts.hit_tokens >= counts.memory_tokens
        if (method.capabilities.exact and choice["recompute"] != Nothing()) or isinstance(choice["recompute"], Full):
            assert close(prefill.logits, plain(engine, prefill))


def test_every_stage_has_a_place_somewhere() -> None:
    accepted: dict[str, set[str]] = {name: set() for name in STAGES}
    refused = 0
    for choice in GRID:
        try:
            build(choice)
        except ConfigError:
            refused += 1
            continue
        for name, value in choice.items():
            accepted[name].add(str(value))
    assert {name: len(found) for name, found in accepted.items()} == {name: len(all_) for name, all_ in STAGES.items()}
    assert 0.3 * len(GRID) < refused < 0.8 * len(GRID)
    assert set(CALLS) < set(STAGES)
