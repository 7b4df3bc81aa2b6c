from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import torch
from transformers import Qwen2Config

from memory.engine.attention.kernels import onednn_multiplies
from memory.engine.base import Engine
from memory.engine.models.load import from_config
from memory.engine.models.tiny_models import tiny_model
from memory.engine.transformers.engine import TransformersEngine
from tests.memory.houses import VOCABULARY
from tests.memory.kv_cache.pairs import GetEngine
from tests.memory.sessions import LAYERS


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=500,
    )  # fmt: skip
    with TransformersEngine(from_config(config, torch.float64, seed=3)) as engines:
        yield engines


@pytest.fixture(scope="session")
def native_bfloat16() -> None:
    if not onednn_multiplies(torch.bfloat16):
        pytest.skip("this processor has no products in bfloat16")


@pytest.fixture(scope="session")
def engine_of() -> Iterator[GetEngine]:
    engines: list[Engine] = []

    @cache
    def make(family: str = "qwen2", dtype: torch.dtype = torch.float64) -> Engine:
        engines.append(TransformersEngine(tiny_model(family, layers=2, dtype=dtype), "inline"))
        engines[-1].model.module.set_experts_implementation("eager")  # other implementations have no float64
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()
