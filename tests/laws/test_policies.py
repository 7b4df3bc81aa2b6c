"""Law 6: a policy equals the slow, dense reference of its paper, both in float64: the same rows, the same logits."""

from __future__ import annotations

import copy

import pytest
import torch

from memory.engine.spec import ModelSpec
from memory.loading.layer_balanced import LayerBalanced
from memory.recompute.multi_hop import MultiHop
from memory.schedule import Schedule
from tests.laws.conftest import GetEngine
from tests.laws.prompts import Prompt, Script
from tests.laws.prompts import relative as deviation
from tests.references.multi_hop import Outcome, keep_prefill

LENGTHS = (9, 4, 13, 7, 6, 11, 5, 8)


def written_out(module: torch.nn.Module, prompt: Prompt, stage: MultiHop, spec: ModelSpec) -> Outcome:
    """The reference's prefill of the same prompt."""
    shares = [1.0, *stage.schedule.ratios(spec.layers)]
    counts = [max(1, round(share * len(LENGTHS))) for share in shares]
    causal = stage.direction == "causal"
    return keep_prefill(module, prompt.units, prompt.query, counts, stage.max_hops, causal, stage.relative)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize(("direction", "relative"), [("causal", True), ("causal", False), ("both", True)])
@pytest.mark.parametrize(("average", "max_hops"), [(0.5, 4), (0.25, 4), (0.5, 0), (0.1, 1)])
def test_law_6_multi_hop(
    family: str, direction: str, relative: bool, average: float, max_hops: int, engine_of: GetEngine
) -> None:
    engine = engine_of(family, torch.float64)
    stage = MultiHop(Schedule("linear", average), max_hops, direction, relative)
    for seed in (0, 100):
        prompt = Prompt.random(LENGTHS, query=6, seed=seed)
        layout = prompt.layout(prompt.blocks(engine))
        result = engine.prefill(layout, stage, LayerBalanced())
        expected = written_out(engine.model.module, prompt, stage, engine.spec)
        last = [max(i for i, rows in enumerate(expected.active) if s.start in rows) for s in layout.segments]
        assert list(result.trace.last_layer) == last
        assert result.trace.active_rows == [len(rows) for rows in expected.active]
        assert [h.hops for h in result.trace.hops] == expected.hops
        assert deviation(result.logits[0], expected.logits) < 1e-5


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
def test_law_6_multi_hop_in_bfloat16(family: str, engine_of: GetEngine) -> None:
    """Rounding flips close calls, so the choice of the float64 reference over the same weights is forced."""
    engine, stage = engine_of(family, torch.bfloat16), MultiHop(Schedule("linear", 0.5))
    exact = copy.deepcopy(engine.model.module).double()
    prompt = Prompt.random(LENGTHS, query=6)
    expected = written_out(exact, prompt, stage, engine.spec)
    forced = Script([torch.tensor(rows) for rows in expected.active])
    result = engine.prefill(prompt.layout(prompt.blocks(engine)), forced, LayerBalanced())
    assert deviation(result.logits[0].double(), expected.logits) < 5e-2
