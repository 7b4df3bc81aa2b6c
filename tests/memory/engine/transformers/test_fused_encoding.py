"""Fused units: memory units that a prompt's prefill encodes give the blocks and logits of units encoded before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from memory.construction.isolated import join_blocks
from memory.engine.base import Engine
from memory.engine.transformers.engine import TransformersEngine
from memory.kv_cache.block import KVBlock
from memory.loading.layer_balanced import LayerBalanced
from memory.loading.serial import Serial
from memory.prompt.layout import Layout
from memory.recompute.full import Full
from memory.recompute.multi_hop import MultiHop, Schedule
from memory.recompute.none import Nothing
from memory.stages import Loading, Probe, Recompute
from tests.laws.prompts import SELECTIVE, Prompt, relative
from tests.memory.engine.transformers.test_probe import Asker

EXACT = 1e-5


def fuse(layout: Layout, names: dict[int, str]) -> Layout:
    """Return ``layout`` with some units fused instead of loaded from blocks; ``names`` maps their numbers to names."""
    units = enumerate(layout.placements)
    fused = (replace(unit, block=None, fused=names[i]) if i in names else unit for i, unit in units)
    return replace(layout, placements=tuple(fused))


def check(blocks: Sequence[KVBlock], expected: Sequence[KVBlock]) -> None:
    for block, peer in zip(blocks, expected, strict=True):
        assert relative(block.k, peer.k) < EXACT and relative(block.v, peer.v) < EXACT


@pytest.mark.parametrize("recompute", [*SELECTIVE.values(), Full()], ids=[*SELECTIVE, "full"])
@pytest.mark.parametrize("context", [0, 7])
def test_fused_units_equal_encoded_ones(any_engine: Engine, recompute: Recompute, context: int) -> None:
    prompt = Prompt.random(context=context)
    blocks, context_block = prompt.blocks(any_engine), prompt.context_block(any_engine)
    layout, options = prompt.layout(blocks), (recompute, LayerBalanced(), context_block)
    before = any_engine.prefill(layout, *options)
    fused = any_engine.prefill(fuse(layout, {0: "a", 2: "b"}), *options, unit_context=context_block)
    assert relative(fused.logits, before.logits) < EXACT
    assert [block.identity for block in fused.encoded] == ["a", "b"]
    check(fused.encoded, [blocks[0], blocks[2]])
    assert fused.trace.active_rows == before.trace.active_rows and not before.encoded
    expected, scores = (any_engine.score(result.cache, [[1, 2], [3]]).scores for result in (before, fused))
    assert relative(scores, expected) < EXACT


@pytest.mark.parametrize("loading", [Serial(), LayerBalanced()])
@pytest.mark.parametrize("importance", ["before", "beside"])
def test_fused_units_with_all_loading_stages(any_engine: Engine, loading: Loading, importance: str) -> None:
    prompt, stage = Prompt.random(), MultiHop(Schedule("linear", 0.4))
    with TransformersEngine(any_engine.model, "thread", importance=importance) as engine:
        layout = prompt.layout(prompt.blocks(engine))
        before, fused = (engine.prefill(item, stage, loading) for item in (layout, fuse(layout, {1: "a"})))
    assert relative(fused.logits, before.logits) < EXACT


@pytest.mark.parametrize("importance", ["before", "beside"])
def test_the_probe_reads_fused_units_as_it_reads_blocks(any_engine: Engine, importance: str) -> None:
    """The probe reads the next layer first, then the present one."""
    prompt = Prompt.random()
    rows = torch.arange(len(prompt.units[1])) + prompt.starts[1]

    def ask(probe: Probe) -> list[torch.Tensor]:
        return [x for layer in (probe.layer + 1, probe.layer) for x in probe.cached_kv(layer, rows)]

    before, fused = Asker(ask, Nothing()), Asker(ask, Nothing())
    with TransformersEngine(any_engine.model, "thread", importance=importance) as engine:
        layout = prompt.layout(prompt.blocks(engine))
        engine.prefill(layout, before, Serial())
        engine.prefill(fuse(layout, {1: "a"}), fused, Serial())
    for answer, expected in zip(fused.answers, before.answers, strict=True):
        assert all(relative(item, peer) < EXACT for item, peer in zip(answer, expected, strict=True))


@pytest.mark.parametrize("context", [0, 7])
@pytest.mark.parametrize("first", [0, 2])
def test_a_fused_unit_sees_the_unit_before_it(any_engine: Engine, context: int, first: int) -> None:
    prompt = Prompt.random(context=context)
    blocks, context_block = prompt.blocks(any_engine), prompt.context_block(any_engine)
    before = join_blocks([block for block in (context_block, blocks[1]) if block])
    (last,) = any_engine.encode([(before, prompt.units[2 - first])])
    blocks[2 - first] = last
    layout, options = prompt.layout(blocks), (Nothing(), Serial(), context_block)
    expected = any_engine.prefill(layout, *options)
    fused = fuse(layout, {0: "a", 2: "b"})
    units = [replace(p, prefix_block=blocks[1] if i == 2 - first else None) for i, p in enumerate(fused.placements)]
    result = any_engine.prefill(replace(fused, placements=tuple(units)), *options, unit_context=context_block)
    assert relative(result.logits, expected.logits) < EXACT
    check(sorted(result.encoded, key=lambda block: block.identity), [blocks[0], blocks[2]])


def test_the_same_text_twice_is_encoded_once(any_engine: Engine) -> None:
    prompt = Prompt.random()
    prompt = Prompt((prompt.units[0], prompt.units[1], prompt.units[0]), prompt.query)
    blocks = prompt.blocks(any_engine)
    layout = prompt.layout(blocks)
    before = any_engine.prefill(layout, Nothing(), Serial())
    fused = any_engine.prefill(fuse(layout, {0: "a", 2: "a"}), Nothing(), Serial())
    assert relative(fused.logits, before.logits) < EXACT
    check(fused.encoded, blocks[:1])


def test_harvested_rows_are_those_of_the_block(any_engine: Engine) -> None:
    prompt = Prompt.random()
    blocks = prompt.blocks(any_engine)
    layout = fuse(prompt.layout(blocks), {1: "a"})
    result = any_engine.prefill(layout, Nothing(), Serial(), keep_raw=True)
    placement = layout.placements[1]
    harvested = any_engine.harvest(result.cache, torch.arange(placement.start, placement.stop))
    check([harvested], [blocks[1]])
