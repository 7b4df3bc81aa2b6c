"""A layer called in two halves is the family's own layer."""

from __future__ import annotations

import pytest
import torch

from memory.engine.attention.function import PromptPass
from memory.engine.attention.kernels import causal_plan
from memory.engine.base import Engine
from memory.engine.transformers import decoder as decoders
from memory.kv_cache.dense import DenseCache

ROWS = 40


def make_pass(engine: Engine) -> PromptPass:
    decoder, rows = engine.decoder, torch.arange(ROWS)
    cache = DenseCache(decoder.spec, ROWS, decoder.device)
    return PromptPass(
        cache=cache,
        rows=slice(0, ROWS),
        visible=cache.end_at(ROWS),
        angles=decoder.rope.at(rows, ROWS),
        plan=causal_plan(rows, rows, decoder.spec.dtype),
        rope_keys=decoder.spec.rope_keys,
    )


@pytest.mark.parametrize("at_once", [512, 16, 7])
def test_halves_are_the_whole(any_engine: Engine, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "FEED_ROWS", at_once)
    decoder, state = any_engine.decoder, make_pass(any_engine)
    with torch.inference_mode():
        hidden = torch.randn(1, ROWS, decoder.spec.hidden, generator=torch.Generator().manual_seed(0))
        for index, layer in enumerate(decoder.layers):
            angles = state.angles[decoder.spec.rope_keys[index]]
            whole = layer(hidden, attention_mask=None, position_embeddings=angles, memory_pass=state)
            whole = whole[0] if isinstance(whole, tuple) else whole
            found = decoder.layer(index, hidden, state)
            torch.testing.assert_close(found, whole, rtol=1e-5, atol=1e-5)
            few = decoder.feed(index, decoder.attend(index, hidden, state)[:, 3:9])
            torch.testing.assert_close(few, whole[:, 3:9], rtol=1e-5, atol=1e-5)
            hidden = whole
