"""Law 6: a policy equals the slow, dense reference of its paper, both in float64: the same rows, the same logits."""

from __future__ import annotations

import pytest
import torch

from memory.loading.layer_balanced import LayerBalanced
from memory.recompute.multi_hop import MultiHop, Schedule
from tests.laws.conftest import GetEngine
from tests.laws.prompts import Prompt, relative
from tests.references.multi_hop import keep_prefill

LENGTHS = (9, 4, 13, 7, 6, 11, 5, 8)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("direction", ["causal", "both"])
@pytest.mark.parametrize(("average", "max_hops"), [(0.5, 4), (0.25, 4), (0.5, 0), (0.1, 1)])
def test_law_6_multi_hop(family: str, direction: str, average: float, max_hops: int, engine_of: GetEngine) -> None:
    engine = engine_of(family, torch.float64)
    stage = MultiHop(Schedule(average=average), max_hops, direction)
    for seed in (0, 100):
        prompt = Prompt.random(LENGTHS, query=6, seed=seed)
        layout = prompt.layout(prompt.blocks(engine))
        shares = [1.0, *stage.schedule.ratios(engine.spec.layers)]
        counts = [max(1, round(share * len(LENGTHS))) for share in shares]
        result = engine.prefill(layout, stage, LayerBalanced())
        expected = keep_prefill(
            engine.model.module, prompt.units, prompt.query, counts, max_hops, causal=direction == "causal"
        )
        last = [max(i for i, rows in enumerate(expected.active) if s.start in rows) for s in layout.segments]
        assert list(result.trace.last_layer) == last
        assert result.trace.active_rows == [len(rows) for rows in expected.active]
        assert [h.hops for h in result.trace.hops] == expected.hops
        assert relative(result.logits[0], expected.logits) < 1e-5
