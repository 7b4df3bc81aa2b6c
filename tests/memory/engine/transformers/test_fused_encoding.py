"""Units that a prompt's prefill encodes on its way: same blocks, same logits as when they were encoded before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from memory.construction.isolated import joined
from memory.engine.base import Engine
from memory.engine.transformers.engine import TransformersEngine
from memory.kv_cache.block import KVBlock
from memory.loading.layer_balanced import LayerBalanced
from memory.loading.serial import Serial
from memory.prompt.layout import Layout
from memory.recompute.first_tokens import FirstTokens
from memory.recompute.full import Full
from memory.recompute.multi_hop import MultiHop, Schedule
from memory.recompute.none import Nothing
from memory.recompute.sparse_query import SparseQuery
from memory.recompute.value_deviation import ValueDeviation
from memory.stages import Loading, Probe, Recompute
from tests.laws.prompts import Prompt, relative

STAGES: dict[str, Recompute] = {
    "none": Nothing(),
    "multi_hop": MultiHop(Schedule("linear", 0.4)),
    "first_tokens": FirstTokens(k=2),
    "sparse_query": SparseQuery(block=3),
    "value_deviation": ValueDeviation(0.4),
    "key_deviation": ValueDeviation(0.4, deviation="kv", selection="single"),
    "full": Full(),
}
EXACT = 1e-5


def carrying(layout: Layout, numbers: Sequence[int], names: Sequence[str]) -> Layout:
    """The same prompt, of which the units ``numbers`` have no block yet."""
    units = list(layout.placements)
    for number, name in zip(numbers, names, strict=True):
        units[number] = replace(units[number], block=None, fused=name)
    return replace(layout, placements=tuple(units))


def check(blocks: Sequence[KVBlock], truth: Sequence[KVBlock]) -> None:
    for block, true in zip(blocks, truth, strict=True):
        assert relative(block.k, true.k) < EXACT and relative(block.v, true.v) < EXACT


@pytest.mark.parametrize("recompute", STAGES.values(), ids=STAGES)
@pytest.mark.parametrize("context", [0, 7])
def test_as_if_encoded_before(any_engine: Engine, recompute: Recompute, context: int) -> None:
    prompt = Prompt.random(context=context)
    blocks, context_block = prompt.blocks(any_engine), prompt.context_block(any_engine)
    layout = prompt.layout(blocks)
    before = any_engine.prefill(layout, recompute, LayerBalanced(), context_block)
    fused = any_engine.prefill(
        carrying(layout, [0, 2], ["a", "b"]), recompute, LayerBalanced(), context_block, unit_context=context_block
    )
    assert relative(fused.logits, before.logits) < EXACT
    assert [block.identity for block in fused.encoded] == ["a", "b"]
    check(fused.encoded, [blocks[0], blocks[2]])
    assert fused.trace.active_rows == before.trace.active_rows and not before.encoded
    score = [[1, 2], [3]]
    expected, outcome = (any_engine.score(item.cache, score).scores for item in (before, fused))
    assert relative(outcome, expected) < EXACT


@pytest.mark.parametrize("loading", [Serial(), LayerBalanced()])
@pytest.mark.parametrize("importance", ["before", "beside"])
def test_beside_any_way_of_loading(any_engine: Engine, loading: Loading, importance: str) -> None:
    prompt, stage = Prompt.random(), MultiHop(Schedule("linear", 0.4))
    with TransformersEngine(any_engine.model, "thread", importance=importance) as engine:
        layout = prompt.layout(prompt.blocks(engine))
        before = engine.prefill(layout, stage, loading)
        fused = engine.prefill(carrying(layout, [1], ["a"]), stage, loading)
    assert relative(fused.logits, before.logits) < EXACT


class Asks(Nothing):
    """Asks beside each layer what the blocks hold for the rows of unit 1, at that layer and at the next one first."""

    def __init__(self) -> None:
        self.answers: list[tuple[torch.Tensor, ...]] = []

    def first(self, layout: Layout, layers: int) -> torch.Tensor:
        placement = layout.placements[1]
        self._rows = torch.arange(placement.start, placement.start + len(placement.unit.token_ids))
        return super().first(layout, layers)

    def narrow(self, layer: int, active: torch.Tensor, probe: Probe) -> torch.Tensor:
        self.answers += [probe.cached_kv(layer + 1, self._rows), probe.cached_kv(layer, self._rows)]
        return active


@pytest.mark.parametrize("importance", ["before", "beside"])
def test_what_is_on_its_way_is_told_as_blocks_would(any_engine: Engine, importance: str) -> None:
    prompt, before, fused = Prompt.random(), Asks(), Asks()
    with TransformersEngine(any_engine.model, "thread", importance=importance) as engine:
        layout = prompt.layout(prompt.blocks(engine))
        engine.prefill(layout, before, Serial())
        engine.prefill(carrying(layout, [1], ["a"]), fused, Serial())
    for outcome, stored in zip(fused.answers, before.answers, strict=True):
        assert all(relative(item, peer) < EXACT for item, peer in zip(outcome, stored, strict=True))


@pytest.mark.parametrize("context", [0, 7])
@pytest.mark.parametrize("first", [0, 2])
def test_one_of_them_sees_what_it_is_behind(any_engine: Engine, context: int, first: int) -> None:
    prompt = Prompt.random(context=context)
    blocks, context_block = prompt.blocks(any_engine), prompt.context_block(any_engine)
    before = joined([block for block in (context_block, blocks[1]) if block])
    (last,) = any_engine.encode([(before, prompt.units[2 - first])])
    blocks[2 - first] = last
    layout = prompt.layout(blocks)
    expected = any_engine.prefill(layout, Nothing(), Serial(), context_block)
    fused_layout = carrying(layout, [0, 2], ["a", "b"])
    units = [replace(p, behind=blocks[1] if i == 2 - first else None) for i, p in enumerate(fused_layout.placements)]
    outcome = any_engine.prefill(
        replace(fused_layout, placements=tuple(units)),
        Nothing(),
        Serial(),
        context_block,
        unit_context=context_block,
    )
    assert relative(outcome.logits, expected.logits) < EXACT
    check(sorted(outcome.encoded, key=lambda block: block.identity), [blocks[0], blocks[2]])


def test_the_same_text_twice_is_encoded_once(any_engine: Engine) -> None:
    prompt = Prompt.random()
    prompt = Prompt((prompt.units[0], prompt.units[1], prompt.units[0]), prompt.query)
    blocks = prompt.blocks(any_engine)
    layout = prompt.layout(blocks)
    before = any_engine.prefill(layout, Nothing(), Serial())
    fused = any_engine.prefill(carrying(layout, [0, 2], ["a", "a"]), Nothing(), Serial())
    assert relative(fused.logits, before.logits) < EXACT
    assert len(fused.encoded) == 1
    check(fused.encoded, blocks[:1])


def test_harvested_rows_are_those_of_the_block(any_engine: Engine) -> None:
    prompt = Prompt.random()
    blocks = prompt.blocks(any_engine)
    layout = carrying(prompt.layout(blocks), [1], ["a"])
    result = any_engine.prefill(layout, Nothing(), Serial(), keep_raw=True)
    placement = layout.placements[1]
    harvested = any_engine.harvest(result.cache, torch.arange(placement.start, placement.stop))
    check([harvested], [blocks[1]])
