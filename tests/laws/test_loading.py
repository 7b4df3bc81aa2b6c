"""Law 7: when and how slices are moved never changes a result."""

from __future__ import annotations

import pytest
import torch

from memory.engine.families import FAMILIES
from memory.loading.layer_balanced import LayerBalanced
from memory.loading.next_layer import NextLayer
from memory.loading.serial import Serial
from memory.recompute.first_tokens import FirstTokens
from memory.recompute.multi_hop import MultiHop
from memory.recompute.none import Nothing
from memory.recompute.sparse_query import SparseQuery
from memory.recompute.value_deviation import ValueDeviation
from memory.schedule import Schedule
from memory.stages import Loading, Recompute
from tests.laws.conftest import GetEngine
from tests.laws.prompts import Prompt

RECOMPUTE: dict[str, Recompute] = {
    "none": Nothing(),
    "multi_hop": MultiHop(Schedule("linear", 0.5)),
    "first_tokens": FirstTokens(k=4),
    "value_deviation": ValueDeviation(0.4),
    "sparse_query": SparseQuery(block=3),
}
STAGES: dict[str, type] = {"serial": Serial, "next_layer": NextLayer, "layer_balanced": LayerBalanced}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("recompute", RECOMPUTE.values(), ids=RECOMPUTE)
def test_law_7_identical_logits(family: str, recompute: Recompute, engine_of: GetEngine) -> None:
    prompt = Prompt.random(context=5)
    found: dict[tuple[str, str], torch.Tensor] = {}
    for transport in ("inline", "thread"):
        engine = engine_of(family, torch.float32, transport)
        layout, context = prompt.layout(prompt.blocks(engine)), prompt.context_block(engine)
        for name, stage in STAGES.items():
            loading: Loading = stage()
            result = engine.prefill(layout, recompute, loading, context)
            found[transport, name] = result.logits
            assert result.trace.loaded_bytes > 0
    first = found["inline", "serial"]
    assert all(torch.equal(logits, first) for logits in found.values()), sorted(found)


def test_intervals_say_when_what_was_moved(engine_of: GetEngine) -> None:
    engine, prompt = engine_of("qwen2", torch.float32, "thread"), Prompt.random()
    layout = prompt.layout(prompt.blocks(engine))
    trace = engine.prefill(layout, Nothing(), NextLayer()).trace
    assert [c.layer for c in trace.computes] == list(range(6))
    for load in trace.loads:
        assert load.end >= load.start
        assert load.end <= trace.computes[load.first].start, "a layer ran before its slices were there"
    memory = layout.query * engine.spec.bytes_per_token
    assert trace.loaded_bytes == memory
    assert set(trace.timings) == {"load", "prefill"} and all(value >= 0 for value in trace.timings.values())
