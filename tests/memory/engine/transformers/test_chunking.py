"""The adaptive schedule as it comes, by which long prompts are cut."""

from __future__ import annotations

import pytest
import torch

from memory.engine.base import ChunkSchedule
from memory.engine.models.tiny_models import tiny_model
from memory.engine.transformers.append import ChunkedPrefill
from memory.kv_cache.quantization import PackFormat
from memory.kv_cache.quantized import QuantizedCache

SIZES = {0: 4096, 2047: 4096, 2048: 2048, 8191: 2048, 8192: 1024, 20479: 1024, 20480: 512, 100_000: 512}


@pytest.mark.parametrize("cached", SIZES)
def test_the_more_is_read_the_fewer_rows_are_computed(cached: int) -> None:
    size = SIZES[cached]
    assert [ChunkSchedule().size(cached, left) for left in (size + 1, size, size - 1, 1)] == [size, size, size - 1, 1]


@pytest.mark.parametrize(("count", "left"), [(2047, 0), (2048, 1024)])
def test_shorter_prompts_than_2048_tokens_stay_whole(count: int, left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind 8,192 rows, where chunks have 1,024: only a prompt that is cut leaves rows to its second step."""
    decoder = tiny_model("qwen2", layers=1).decoder
    cache = QuantizedCache(decoder.spec, PackFormat(4, 16), decoder.device)
    extension = ChunkedPrefill(decoder, cache, torch.randint(5, 500, (count,)), ChunkSchedule())
    monkeypatch.setattr(QuantizedCache, "length", 8192)
    monkeypatch.setattr("memory.engine.transformers.append.append", lambda *_, **__: None)
    assert extension.step() == left
