"""Fixtures: agents' memories over two small models, in a folder of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from memory.agents.manager import AgentMemories
from memory.agents.text_match import TokenizerCoder
from memory.engine.base import Engine
from memory.engine.models.tiny_models import tiny_model
from memory.engine.transformers.engine import TransformersEngine
from tests.memory.agents.coders import coder_of, tokenizer_of
from tests.memory.agents.reference import Make, ReferenceMemories


@pytest.fixture(scope="session")
def coder() -> TokenizerCoder:
    return coder_of("planner")


@pytest.fixture(scope="session")
def engines() -> Iterator[list[Engine]]:
    options = {"layers": 2, "vocab_size": tokenizer_of("planner").get_vocab_size(), "dtype": torch.float64}
    engines = [TransformersEngine(tiny_model("qwen2", seed=seed, **options), "inline") for seed in (0, 1)]
    yield engines
    for engine in engines:
        engine.close()


@pytest.fixture
def engine(engines: list[Engine]) -> Engine:
    return engines[0]


@pytest.fixture
def make(engine: Engine, coder: TokenizerCoder, tmp_path: Path) -> Iterator[Make]:
    every = []

    def build(**knobs: Any) -> AgentMemories:
        every.append(AgentMemories(engine, coder, **{"folder": tmp_path / "rows", **knobs}))
        return every[-1]

    yield build
    for memories in every:
        memories.close()


@pytest.fixture
def reference(make: Make) -> ReferenceMemories:
    return ReferenceMemories(make())
