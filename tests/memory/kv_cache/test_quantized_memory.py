"""Memory of a quantized cache: bytes at rest, bytes during a pass, and tiles that are not unpacked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from memory.engine.attention.tiled import TILE
from memory.engine.base import ChunkSchedule
from memory.engine.models.tiny_models import FAMILIES, tiny_model
from memory.engine.scheduler.batch import Batch
from memory.engine.transformers.append import append
from memory.engine.transformers.engine import TransformersEngine
from memory.kv_cache.quantization import Packed, PackFormat, pack
from memory.kv_cache.quantized import PAGE, QuantizedCache
from tests.laws.prompts import relative, tokens
from tests.memory.engine.attention.test_tiled import Live
from tests.memory.kv_cache.pairs import EXACT, FORMATS, GetEngine, Pair, packed, save


def test_a_layer_is_never_whole_in_full_precision() -> None:
    model = tiny_model("qwen2", layers=2, num_key_value_heads=4, head_dim=32)
    cache = QuantizedCache(model.spec, FORMATS[0], model.decoder.device)
    layer = 2 * 4 * TILE * 4 * 32 * 4  # bytes of keys and values of 8,192 rows
    with torch.inference_mode():
        for chunk in torch.tensor(tokens(4 * TILE, 1)).split(512):
            append(model.decoder, cache, chunk, last=False)
        model.decoder.rope.at(torch.zeros(1, dtype=torch.long), 5 * TILE)  # so that the RoPE tables do not grow later
        for count, cut in ((16, 0), (1, 0), (30, 0), (5, 4 * TILE - 30)):
            if cut:
                cache.cut(cut)
            with Live() as live:
                append(model.decoder, cache, torch.tensor(tokens(count, 2)))
            assert live.peak < layer, "keys and values of one layer"
            assert live.largest <= layer // 8, "one side of a tile"
            cache.cut(4 * TILE)


@pytest.mark.parametrize("agents", [2, 32])
@pytest.mark.parametrize("format", [FORMATS[0], FORMATS[2]], ids=lambda f: f"{f.bits}-{f.keys}")
def test_a_batch_takes_no_more_than_one_agent(format: PackFormat, agents: int) -> None:
    """8,192 rows in all, of one agent or of several: a batch unpacks no more at a time."""
    model, rows = tiny_model("qwen2", layers=2, num_key_value_heads=4, head_dim=32), 4 * TILE
    layer = 2 * rows * 4 * 32 * 4
    with torch.inference_mode():
        model.decoder.rope.at(torch.zeros(1, dtype=torch.long), rows + TILE)
        alone, share_cache = (QuantizedCache(model.spec, format, model.decoder.device) for _ in range(2))
        for cache, count in ((alone, rows), (share_cache, rows // agents)):
            for chunk in torch.tensor(tokens(count, 1)).split(512):
                append(model.decoder, cache, chunk, last=False)
        with Live() as expected:
            append(model.decoder, alone, torch.tensor([7]))
        batch = Batch(model.decoder, [share_cache.fork() for _ in range(agents)])
        batch.step([7] * agents)  # allocates the room of the last rows
        with Live() as live:
            batch.step([7] * agents)
    at_rest = agents * share_cache.open.nbytes  # rows of incomplete pages are not packed
    assert live.peak - at_rest <= expected.peak < layer / 2, "keys and values of one layer"
    assert live.largest <= max(layer // 4, at_rest), "keys or values of a tile"


@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("tokens_", [4096, 4096 + 63, 5000])
def test_bytes(heads: int, tokens_: int, tmp_path: Path) -> None:
    """At most 30 % of float16, in memory and on the disk, if 64 divides the numbers per token."""
    model = tiny_model("qwen2", layers=2, head_dim=32, num_key_value_heads=heads, dtype=torch.bfloat16)
    with TransformersEngine(model) as engine:
        cache = packed(engine)
        engine.extend(cache, tokens(tokens_, 1), ChunkSchedule())
        full = 2 * tokens_ * engine.info.layers * 2 * heads * 32
        assert engine.info.bytes_per_token * tokens_ == full and 0.28 * full < cache.nbytes < 0.30 * full
        stored = sum(extent.k.nbytes + extent.v.nbytes for extent in cache.extents)
        assert stored < 1.1 * 0.30 * full, "reserved room included"
        ids = sum(len(str(token)) + 1 for token in cache.tokens)
        assert save(cache, tmp_path / "a").stat().st_size - ids < 0.31 * full + 4096


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_unseen_tiles_are_not_unpacked(share: float, engine_of: GetEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sliding layer reads open rows only, a full layer all tiles; the window counts positions, not live rows."""
    pair = Pair.new(engine_of("gemma3_text"))
    pair.append(2 * TILE + 100)
    pair.drop(share)
    counts: list[int] = []
    real = Packed.unpack
    monkeypatch.setattr(Packed, "unpack", lambda self, dtype: counts.append(self.tokens) or real(self, dtype))
    logits = pair.engine.extend(pair.cache.fork(), tokens(3, 1)).logits
    assert counts == [TILE, TILE, TILE, TILE, PAGE, PAGE]
    monkeypatch.undo()
    assert relative(logits, pair.dense.copy().append(tokens(3, 1))[-1:]) < EXACT
    pair.append(TILE - 100)
    pair.score()


def test_bytes_of_open_and_packed_rows(engine_of: GetEngine) -> None:
    engine = engine_of("qwen2", torch.bfloat16)
    cache = packed(engine)
    assert cache.nbytes == 0
    engine.extend(cache, tokens(63, 1))
    assert cache.nbytes == 63 * engine.info.bytes_per_token
    engine.extend(cache, [1])
    k, v = (torch.zeros(engine.info.layers, engine.info.kv_heads, PAGE, engine.info.head_dim) for _ in "kv")
    assert cache.nbytes == pack(k, FORMATS[0]).nbytes + pack(v, FORMATS[0]).nbytes
    for family in FAMILIES:
        spec = engine_of(family).info
        assert spec.bytes_per_token == 2 * spec.layers * spec.kv_heads * spec.head_dim * 8
