"""Decoder: a layer called in two halves equals the family's own layer; sizes of chunks."""

from __future__ import annotations

import pytest
import torch

from memory.engine.attention.function import PromptPass
from memory.engine.attention.kernels import causal_plan
from memory.engine.base import ChunkSchedule, Engine
from memory.engine.models.tiny_models import tiny_model
from memory.engine.transformers import decoder as decoders
from memory.engine.transformers.append import ChunkedPrefill
from memory.kv_cache.dense import DenseCache
from memory.kv_cache.quantization import PackFormat
from memory.kv_cache.quantized import QuantizedCache

ROWS = 40


@pytest.mark.parametrize("at_once", [512, 16, 7])
def test_a_layer_in_two_halves_equals_the_whole_layer(
    any_engine: Engine, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoders, "FEED_ROWS", at_once)
    decoder, rows = any_engine.decoder, torch.arange(ROWS)
    cache, plan = DenseCache(decoder.spec, ROWS, decoder.device), causal_plan(rows, rows, decoder.spec.dtype)
    angles_by_key = decoder.rope.angles_at(rows, ROWS)
    state = PromptPass(cache, slice(0, ROWS), cache.end_at(ROWS), angles_by_key, plan, decoder.spec.rope_keys)
    with torch.inference_mode():
        hidden = torch.randn(1, ROWS, decoder.spec.hidden, generator=torch.Generator().manual_seed(0))
        for index, layer in enumerate(decoder.layers):
            angles = angles_by_key[decoder.spec.rope_keys[index]]
            whole = layer(hidden, attention_mask=None, position_embeddings=angles, memory_pass=state)
            whole = whole[0] if isinstance(whole, tuple) else whole
            result = decoder.layer(index, hidden, state)
            torch.testing.assert_close(result, whole, rtol=1e-5, atol=1e-5)
            few = decoder.feed(index, decoder.attend(index, hidden, state)[:, 3:9])
            torch.testing.assert_close(few, whole[:, 3:9], rtol=1e-5, atol=1e-5)
            hidden = whole


@pytest.mark.parametrize(("count", "rest"), [(2047, 0), (2048, 1024)])
def test_shorter_prompts_than_2048_tokens_stay_whole(count: int, rest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After 8,192 rows a chunk has 1,024 rows, so a prompt in chunks has rows left after its first step."""
    decoder = tiny_model("qwen2", layers=1).decoder
    cache = QuantizedCache(decoder.spec, PackFormat(4, 16), decoder.device)
    extension = ChunkedPrefill(decoder, cache, torch.randint(5, 500, (count,)), ChunkSchedule())
    monkeypatch.setattr(QuantizedCache, "length", 8192)
    monkeypatch.setattr("memory.engine.transformers.append.append", lambda *_, **__: None)
    assert extension.step() == rest
