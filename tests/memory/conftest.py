from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers import Qwen2Config

from memory.engine.models.load import from_config
from memory.engine.transformers.engine import Engine
from tests.memory.houses import VOCABULARY
from tests.memory.sessions import LAYERS


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=500,
    )  # fmt: skip
    with Engine(from_config(config, torch.float64, seed=3)) as made:
        yield made
