"""Law 5: active rows are a subset of the previous layer's, and no row attends to a later position."""

from __future__ import annotations

import pytest
import torch

from keep_agent.errors import ConfigError
from memory.engine.base import Engine
from memory.loading.layer_balanced import LayerBalanced
from memory.loading.serial import Serial
from memory.prompt.layout import Layout, Transfer
from memory.recompute.none import Nothing
from memory.stages import Recompute
from tests.laws.conftest import GetEngine
from tests.laws.prompts import SELECTIVE, Always, Prompt, RecordingStage, Script, shrinking, tokens


@pytest.mark.parametrize("stage", SELECTIVE.values(), ids=SELECTIVE)
def test_active_rows_only_shrink_and_contain_no_exact_rows(engine: Engine, stage: Recompute) -> None:
    prompt = Prompt.random(context=5)
    recorder, layout = RecordingStage(stage), prompt.layout(prompt.blocks(engine), exact=1)
    result = engine.prefill(layout, recorder, LayerBalanced(), prompt.context_block(engine))
    for before, after in zip(recorder.active, recorder.active[1:], strict=False):
        assert set(after.tolist()) <= set(before.tolist())
    assert not layout.exact[recorder.active[0]].any() and int(layout.exact.sum()) == 25
    assert result.trace.active_rows == [rows.numel() for rows in recorder.active]
    owners = [set(layout.segment_of[rows].tolist()) for rows in recorder.active]
    last = [max((layer for layer, segments in enumerate(owners) if i in segments), default=-1) for i in range(4)]
    assert list(result.trace.last_layer) == last


def test_later_tokens_change_no_earlier_key_or_value(engine: Engine) -> None:
    """Replace the last unit and the query; the recomputed rows before them stay the same."""
    first = Prompt.random()
    second = Prompt((*first.units[:3], tuple(tokens(26, 90))), tuple(tokens(12, 91)))
    caches = []
    for prompt in (first, second):
        layout = prompt.layout(prompt.blocks(engine))
        caches.append(engine.prefill(layout, shrinking(layout, engine.info.layers), Serial()).cache)
    common = first.starts[3]
    for layer in range(engine.info.layers):
        for a, b in zip(caches[0].read(layer, common), caches[1].read(layer, common), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    changed = [cache.read(engine.info.layers - 1, caches[0].length)[1][:, :, common:] for cache in caches]
    assert float((changed[0] - changed[1]).abs().max()) > 0.1


def test_units_encoded_together_do_not_see_each_other(engine: Engine) -> None:
    prompt = Prompt.random(context=7)
    context = prompt.context_block(engine)
    together = engine.encode([(context, unit) for unit in prompt.units])
    for unit, block in zip(prompt.units, together, strict=True):
        alone = engine.encode([(context, unit)])[0]
        torch.testing.assert_close(block.k, alone.k, rtol=1e-5, atol=2e-5)
        torch.testing.assert_close(block.v, alone.v, rtol=1e-5, atol=2e-5)


def test_encoded_units_of_different_contexts_keep_their_order(engine_of: GetEngine) -> None:
    engine, prompt = engine_of("qwen2"), Prompt.random(context=7)
    context = prompt.context_block(engine)
    mixed = engine.encode([(context if i % 2 else None, unit) for i, unit in enumerate(prompt.units)], list("abcd"))
    assert [block.identity for block in mixed] == list("abcd")
    for i, (unit, block) in enumerate(zip(prompt.units, mixed, strict=True)):
        torch.testing.assert_close(block.v, engine.encode([(context if i % 2 else None, unit)])[0].v)


@pytest.fixture
def plain(engine_of: GetEngine) -> Engine:
    return engine_of("qwen2")


def test_revived_and_dropped_fresh_rows_are_refused(plain: Engine) -> None:
    prompt = Prompt.random()
    layout = prompt.layout(prompt.blocks(plain))
    every, fresh = torch.arange(layout.rows), layout.fresh.nonzero()[:, 0]
    revived, dropped = [every, fresh, *[every] * 4], [fresh, *[fresh[1:]] * 5]
    for rows, sentence in ((revived, "not active"), (dropped, "fresh"), (dropped[1:] * 2, "fresh")):
        with pytest.raises(ConfigError, match=sentence):
            plain.prefill(layout, Script(rows), Serial())


def test_a_missing_transfer_is_refused(plain: Engine) -> None:
    class IncompleteLoading(Serial):
        def schedule(self, layout: Layout, layer: int, active: torch.Tensor, layers: int) -> list[Transfer]:
            return super().schedule(layout, layer, active, layers)[layer == 3 :]

    prompt = Prompt.random()
    with pytest.raises(ConfigError, match="layer 3, first row 0"):
        plain.prefill(prompt.layout(prompt.blocks(plain)), Nothing(), IncompleteLoading())


def test_inconsistent_prompts_are_refused(plain: Engine) -> None:
    prompt = Prompt.random(context=4)
    good = prompt.layout(prompt.blocks(plain))
    with pytest.raises(ConfigError, match="have no block"):
        plain.prefill(good, Always(), Serial())
    with pytest.raises(ConfigError, match="20 tokens"):
        plain.prefill(good, Always(), Serial(), plain.encode([(None, prompt.units[0])])[0])
    good.positions[5] = 4
    with pytest.raises(ConfigError, match="increase"):
        plain.prefill(good, Always(), Serial(), prompt.context_block(plain))
