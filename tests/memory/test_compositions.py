"""Compositions of stages: each runs on a tiny model, or is refused with a sentence when it is built."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_module

from keep_agent.config.planner_factory import make_method
from keep_agent.errors import ConfigError
from memory.construction.fixed_blocks import FixedBlocks
from memory.construction.history import History
from memory.construction.per_segment import PerSegment
from memory.construction.prefix import Prefix
from memory.construction.segments import Segments
from memory.construction.static_dynamic import StaticDynamic
from memory.construction.turns import Turns
from memory.engine.base import Engine
from memory.kv_cache.block import KVBlock
from memory.loading.layer_balanced import LayerBalanced
from memory.loading.next_layer import NextLayer
from memory.loading.serial import Serial
from memory.method import MEMBERS, MemoryMethod
from memory.recompute.first_tokens import FirstTokens
from memory.recompute.full import Full
from memory.recompute.multi_hop import MultiHop
from memory.recompute.none import Nothing
from memory.recompute.sparse_query import SparseQuery
from memory.recompute.value_deviation import ValueDeviation
from memory.retention.h2o import H2O
from memory.retention.keep_all import KeepAll
from memory.retention.query_memory import QueryMemory
from memory.retention.snapkv import SnapKV
from memory.retention.streaming import Streaming
from memory.retrieval.all import All
from memory.retrieval.embedding import Embedding
from memory.retrieval.latent import Latent
from memory.stages import Storage
from memory.storage.quantized import Quantized
from memory.storage.ram import Ram
from tests.memory import sessions
from tests.memory.sessions import close, episode, open_session, plain
from tests.memory.test_method import Rounding
from tests.memory.test_session import STORAGES

STAGES: dict[str, tuple[Any, ...]] = {
    "retrieval": (All(), Embedding(), Latent(top_k=4), Latent(top_k=4, layers="each")),
    "construction": (
        PerSegment(), FixedBlocks(size=9), StaticDynamic(), Prefix(block_size=4), Segments(block_size=4),
        History(block_size=4), Turns(block_size=4), Turns(block_size=4, survivors="move"),
    ),
    "recompute": (
        Full(), Nothing(), FirstTokens(k=2), ValueDeviation(ratio=0.4), SparseQuery(block=2, share=0.4), MultiHop(),
    ),
    "layout": ("memory", "append"),
    "loading": (Serial(), NextLayer(), LayerBalanced()),
    "storage": tuple(STORAGES),
    "retention": (KeepAll(), Streaming(40), H2O(40), SnapKV(40, window=8), QueryMemory(40)),
}  # fmt: skip
SAMPLED = ("loading", "storage", "retention")  # sampled: not every product of the choices occurs


def grid() -> list[dict[str, Any]]:
    """Return products of the other stages with sampled ones, and all compositions of the growing cache."""
    deciding = [name for name in STAGES if name not in SAMPLED]
    rng = random.Random(0)
    products = (dict(zip(deciding, values, strict=True)) for values in product(*(STAGES[name] for name in deciding)))
    choices = [choice | {name: rng.choice(STAGES[name]) for name in SAMPLED} for choice in products]
    keep, *later = STAGES["retention"]
    choices = [choice | {"retention": keep} for choice in choices]  # most cannot drop rows: a few suffice
    choices += [choice | {"retention": retention} for retention in later for choice in choices[::13]]
    turns = [stage for stage in STAGES["construction"] if isinstance(stage, Turns)]
    names = ("construction", "layout", "storage", "retention")
    turns_grid = product(turns, *(STAGES[name] for name in names[1:]))
    base = {"retrieval": Embedding(), "recompute": Nothing(), "loading": Serial()}
    return choices + [base | dict(zip(names, values, strict=True)) for values in turns_grid]


GRID = grid()


def build(choice: dict[str, Any]) -> MemoryMethod:
    return MemoryMethod("composed", grouping=sessions.GROUPING, **(choice | {"storage": STORAGES[choice["storage"]]()}))


def label(value: object) -> str:
    name = value if isinstance(value, str) else type(value).__name__
    return f"{name} per layer" if getattr(value, "layers", "") == "each" else name


@pytest.mark.parametrize("choice", GRID, ids=lambda choice: "-".join(label(choice[name]) for name in choice))
def test_a_composition_runs_or_is_refused(choice: dict[str, Any], engine: Engine) -> None:
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
        if isinstance(choice["construction"], Turns):
            budget = method.retention.budget
            assert counts.live_tokens <= (budget or prefill.layout.rows)
            if budget is None:  # packed: 8 bits
                assert close(prefill.logits, plain(engine, prefill), 1e-5 if method.packs is None else 0.005)
        if (method.capabilities.exact and choice["recompute"] != Nothing()) or isinstance(choice["recompute"], Full):
            assert close(prefill.logits, plain(engine, prefill))


def test_every_stage_is_accepted_in_some_composition() -> None:
    accepted: dict[str, set[str]] = {name: set() for name in STAGES}
    refusals = 0
    for choice in GRID:
        try:
            build(choice)
        except ConfigError:
            refusals += 1
            continue
        for name, value in choice.items():
            accepted[name].add(str(value))
    assert all(len(accepted[name]) == len(values) for name, values in STAGES.items())
    assert 0.3 * len(GRID) < refusals < 0.8 * len(GRID) and set(MEMBERS) < set(STAGES)


PACKABLE = ("full_reuse", "epic", "cacheblend", "sparsex", "keep", "memart")
LOSSY = {
    "8 by token": (Quantized(bits=8), 0.005),
    "8 by channel": (Quantized(bits=8, group=8, keys="channel"), 0.005),
    "4 by token": (Quantized(bits=4), 0.06),
    "4 by channel": (Quantized(bits=4, group=8, keys="channel"), 0.06),
}  # storage, and bound of the logits' relative error


@cache
def configured(name: str, *overrides: str) -> MemoryMethod:
    with initialize_config_module("configs", version_base="1.3"):
        return make_method(compose("alfred", [f"memory={name}", *overrides]).memory)


def lossy(name: str, storage: Storage) -> MemoryMethod:
    return replace(configured(name), grouping=sessions.GROUPING, storage=storage)


@pytest.mark.parametrize("name", PACKABLE)
def test_one_override_packs_a_method(name: str) -> None:
    method = configured(name, "memory/storage=quantized", "memory.storage.bits=8")
    assert isinstance(method.storage, Quantized) and method.storage.bits == 8 and not method.capabilities.exact
    with pytest.raises(ConfigError, match="Quantized changes what it stores"):
        configured("prefix_cache", "memory/storage=quantized")


@pytest.mark.parametrize("name", PACKABLE)
def test_rounding_moves_the_logits_a_little(name: str, engine: Engine) -> None:
    """Compare with a storage that declares rounding without doing it: both reuse and recompute the same rows."""
    expected = [prefill.logits for prefill in episode(open_session(engine, lossy(name, Rounding())), 8)]
    worst = {}
    for label_, (kind, bound) in LOSSY.items():
        storage = replace(kind)
        prefills = list(episode(open_session(engine, lossy(name, storage)), 8))
        assert sum(prefill.counts.hit_tokens for prefill in prefills) > 0 < storage.stats()["bytes"]
        off = [(p.logits - e).abs().max() / e.abs().max() for p, e in zip(prefills, expected, strict=True)]
        worst[label_] = float(max(off))
        assert 0 < worst[label_] < bound, worst
    assert worst["8 by token"] < worst["4 by token"] / 4


@pytest.mark.parametrize("name", PACKABLE)
@pytest.mark.parametrize("storage", [Ram(), *(storage for storage, _ in LOSSY.values())], ids=["exact", *LOSSY])
def test_loading_never_changes_a_result(name: str, storage: Storage, engine: Engine) -> None:
    methods = [replace(lossy(name, replace(storage)), loading=loading) for loading in STAGES["loading"]]
    for first, *later in zip(*(episode(open_session(engine, method), 5) for method in methods), strict=True):
        for prefill in later:
            counts = replace(prefill.counts, loaded_bytes=first.counts.loaded_bytes)  # rows may become active later
            assert torch.equal(prefill.logits, first.logits) and counts == first.counts


@pytest.mark.parametrize("kind", LOSSY)
def test_packed_blocks_are_served_as_unpacked(kind: str, engine: Engine) -> None:
    """Law 2 up to rounding: only the stored numbers differ."""
    session = open_session(engine, lossy("full_reuse", replace(LOSSY[kind][0])))
    prefill = list(episode(session, 4))[-1]
    layout, stages = prefill.layout, (session.method.recompute, session.method.loading)
    placements = [
        replace(p, block=None if p.block is None else KVBlock(p.block.identity, p.block.k[:], p.block.v[:]))
        for p in layout.placements
    ]
    (context,) = engine.encode([(None, sessions.CONTEXT)])
    unpacked = engine.prefill(replace(layout, placements=tuple(placements)), *stages, context, unit_context=context)
    assert sum(p.hit for p in placements) > 5 and torch.equal(unpacked.logits, prefill.logits)
