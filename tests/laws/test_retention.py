"""Law 8: what a retention stage forgets is what a dense mask hides; what survives stays where it is."""

from __future__ import annotations

import pytest
import torch

from memory.engine.engine import Engine
from memory.loading.serial import Serial
from memory.recompute.full import Full
from memory.retention.keep_all import KeepAll
from memory.stages import Retention
from tests.laws.prompts import Prompt, relative, tokens
from tests.references.isolated import dense_mask


@pytest.mark.parametrize("retention", [KeepAll()], ids=lambda stage: type(stage).__name__)
def test_law_8_forgetting_is_hiding(retention: Retention, engine: Engine) -> None:
    """The next turn behind what was kept equals transformers' forward that may look at nothing else."""
    prompt, turn = Prompt.random(), tokens(9, 60)
    run = engine.prefill(prompt.layout([None] * 4), Full(), Serial())
    before = [x.clone() for x in run.cache.read(0, run.cache.length)]
    kept = retention.keep(run.cache, None, None)
    found = engine.append(run.cache, turn)
    for was, now in zip(before, run.cache.read(0, len(kept)), strict=True):
        assert torch.equal(was[:, :, kept], now[:, :, kept])
    rows = torch.arange(len(kept) + len(turn))
    seen = torch.cat([kept, torch.ones(len(turn), dtype=torch.bool)])
    visible = (rows[None] <= rows[:, None]) & (seen[None] | (rows[:, None] < len(kept)))
    ids = torch.cat([prompt.ids, torch.tensor(turn)])
    expected = engine.forward_plain(ids, dense_mask(engine.plain, visible, rows, rows))[-1]
    assert relative(found[0], expected) < 1e-5
    if not retention.capabilities.evicts:
        assert kept.all()
