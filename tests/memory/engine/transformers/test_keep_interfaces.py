"""A prompt driven by hand through KEEP's three interfaces equals the engine's own prefill."""

from __future__ import annotations

import pytest

from keep_agent.errors import ConfigError
from memory.engine.base import Engine
from memory.loading.layer_balanced import LayerBalanced
from memory.recompute.multi_hop import MultiHop, Schedule
from memory.recompute.none import Nothing
from tests.laws.prompts import Prompt, relative

PROMPT = Prompt.random(context=5)


def test_layers_called_by_hand_equal_prefill(any_engine: Engine) -> None:
    engine, stage = any_engine, MultiHop(Schedule("linear", 0.4))
    layout, context = PROMPT.layout(PROMPT.blocks(any_engine)), PROMPT.context_block(any_engine)
    expected = engine.prefill(layout, stage, LayerBalanced(), context)
    steps = engine.steps(layout, stage, context)
    ids, hidden, cache = [span.segment for span in layout.segments], steps.input, steps.cache
    relevant = steps.active_ids()
    for layer in range(engine.info.layers):
        for memory_id in set(ids) - set(relevant):
            k, v = steps.load_memory(memory_id, layer)
            assert k.shape == v.shape == (engine.info.kv_heads, len(PROMPT.units[int(memory_id[1:])]), 16)
        hidden, cache = steps.prefill_layer(hidden, layer, cache)
        if layer + 1 < engine.info.layers:
            relevant = steps.importance_evaluation(layer, relevant, steps.attention)
    result = steps.finish(hidden)
    assert relative(result.logits, expected.logits) < 1e-5
    assert result.trace.last_layer == expected.trace.last_layer
    assert result.trace.loaded_bytes == expected.trace.loaded_bytes


def test_wrong_calls_are_refused(engine: Engine) -> None:
    layout = PROMPT.layout([*PROMPT.blocks(engine)[:3], None])
    steps = engine.steps(layout, Nothing(), PROMPT.context_block(engine))
    with pytest.raises(ConfigError, match="'s9' is not in this prompt"):
        steps.load_memory("s9", 0)
    with pytest.raises(ConfigError, match="'s3' has no block"):
        steps.load_memory("s3", 0)
    with pytest.raises(ConfigError, match="no layer has been computed"):
        _ = steps.attention
    steps.load_memory("s0", 0)
    with pytest.raises(ConfigError, match="left 48 rows without keys at layer 0, first row 25"):
        steps.prefill_layer(steps.input, 0, steps.cache)
