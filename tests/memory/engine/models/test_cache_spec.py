"""Cache sizes of all families, against blocks that are made and packed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from rich.console import Console
from transformers import AutoConfig

from benchmarks.agents import AGENT_TOKENS, cache_spec_of, capacity
from keep_agent.errors import ConfigError
from memory.engine.base import Engine
from memory.engine.models.cache_spec import ModelCacheSpec
from memory.engine.models.model_shapes import SHAPES
from memory.engine.models.tiny_model_configs import WINDOW
from memory.engine.models.tiny_models import tiny_model
from memory.kv_cache.packed_rows import PackedRows
from memory.kv_cache.quantization import PackFormat

FORMATS = [PackFormat(bits, group, keys) for bits in (4, 8) for group in (16, 64) for keys in ("token", "channel")]
SLIDING = {"qwen2_sliding": 3, "mistral": 6, "gemma3_text": 3, "gpt_oss": 3}  # of six layers


def test_every_family_takes_what_its_blocks_take(any_engine: Engine) -> None:
    spec = ModelCacheSpec.from_spec(any_engine.info)
    (block,) = any_engine.encode([(None, list(range(64)))])
    assert (spec.layers, spec.kv_heads, spec.head_dim) == (block.k.shape[0], block.k.shape[1], block.k.shape[3])
    assert 64 * spec.bytes_per_token() == block.nbytes == 64 * any_engine.info.bytes_per_token
    for format in FORMATS:
        packed = PackedRows.of(block.k, format, format.keys).nbytes + PackedRows.of(block.v, format).nbytes
        assert packed <= 64 * spec.bytes_per_token(format) < packed + 64 * spec.layers


@pytest.mark.parametrize("family", ["qwen2", "mistral", "qwen2_sliding", "gemma3_text", "gpt_oss"])
def test_what_sliding_layers_could_leave_out(family: str) -> None:
    spec = ModelCacheSpec.from_spec(tiny_model(family).spec)
    sliding = SLIDING.get(family, 0)
    assert spec.layer_types.count("sliding_attention") == sliding
    assert spec.window == (WINDOW if sliding else None) and spec.sinks == (family == "gpt_oss")
    per_layer = spec.bytes_per_token() // spec.layers
    assert [spec.bytes_spared(n) for n in (0, WINDOW, WINDOW + 10)] == [0, 0, 10 * sliding * per_layer]
    assert spec.bytes_spared(100, PackFormat()) <= spec.bytes_spared(100)


@pytest.mark.parametrize("name", SHAPES)
def test_named_shapes(name: str) -> None:
    config = AutoConfig.for_model(**SHAPES[name])
    head_dim = config.hidden_size // config.num_attention_heads
    kinds = ("full_attention",) * config.num_hidden_layers
    shape = config.num_hidden_layers, config.num_key_value_heads, head_dim
    spec = ModelCacheSpec(*shape, kinds, None, torch.bfloat16, False)
    full, budget = spec.bytes_per_token(), 1 << 30
    assert full == 2 * 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim
    assert [spec.bytes_per_token(PackFormat(bits)) / full for bits in (4, 8)] == [0.28125, 0.53125]
    assert spec.bytes_spared(10_000) == 0
    for format in (None, *FORMATS):
        tokens = spec.tokens_in(budget, format)
        assert tokens * spec.bytes_per_token(format) <= budget < (tokens + 1) * spec.bytes_per_token(format)
        assert spec.agents_in(budget, 1000, format) == tokens // 1000


def test_figures_one_can_check_by_hand() -> None:
    """Llama 3.1 8B: 32 layers, 8 heads of 128: 128 KiB a token in bfloat16."""
    spec = ModelCacheSpec(32, 8, 128, ("full_attention",) * 32, None, torch.bfloat16, False)
    assert spec.bytes_per_token() == 128 << 10
    assert spec.tokens_in(1 << 30) == 8192 and spec.tokens_in(1 << 30, PackFormat()) == 29127
    assert spec.agents_in(1 << 30, 4096) == 2 and spec.agents_in(1 << 30, 4096, PackFormat()) == 7
    assert replace(spec, dtype=torch.float32).bytes_per_token() == 256 << 10
    with pytest.raises(ConfigError, match="budget_bytes=-1"):
        spec.tokens_in(-1)
    with pytest.raises(ConfigError, match="tokens=0"):
        spec.agents_in(1, 0)


def test_the_benchmark_counts_only_what_fits() -> None:
    """Half a token of room is none: 4 GiB hold 466,033.8 tokens of planner-tiny."""
    console = Console(width=140)
    with console.capture() as expected_values:
        console.print(capacity(4.0))
    lines = {
        line.split()[1]: line.replace("│", "").split() for line in expected_values.get().splitlines() if "x │" in line
    }
    assert list(lines) == list(SHAPES)
    for shape, (_, full, few, *fitting, _) in lines.items():
        spec, formats = cache_spec_of(shape), (None, PackFormat())
        assert [full, few] == [f"{spec.bytes_per_token(format):,}" for format in formats]
        longest = [spec.tokens_in(4 << 30, format) for format in formats]
        agents = [spec.agents_in(4 << 30, AGENT_TOKENS, format) for format in formats]
        assert fitting == [f"{count:,}" for count in longest + agents]
    assert lines["planner-tiny"][3] == "466,033"
