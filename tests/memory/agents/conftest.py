"""Memories of agents over two small models, in a folder of their own."""

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
from planners.tiny.checkpoint import BUNDLED
from planners.tiny.tokenizer import load_tokenizer
from tests.memory.agents.reference import Make, ReferenceMemories


@pytest.fixture(scope="session")
def coder() -> TokenizerCoder:
    return TokenizerCoder(load_tokenizer(BUNDLED / "tokenizer.json"))


@pytest.fixture(scope="session")
def engines(coder: TokenizerCoder) -> Iterator[list[Engine]]:
    """Two models that differ in their weights."""
    size = load_tokenizer(BUNDLED / "tokenizer.json").get_vocab_size()
    made = [
        TransformersEngine(tiny_model("qwen2", layers=2, vocab_size=size, dtype=torch.float64, seed=seed), "inline")
        for seed in (0, 1)
    ]
    yield made
    for engine in made:
        engine.close()


@pytest.fixture
def engine(engines: list[Engine]) -> Engine:
    return engines[0]


@pytest.fixture
def make(engine: Engine, coder: TokenizerCoder, tmp_path: Path) -> Iterator[Make]:
    """Memories in a folder of their own, closed at the end."""
    made = []

    def build(**knobs: Any) -> AgentMemories:
        made.append(AgentMemories(engine, coder, **{"folder": tmp_path / "rows", **knobs}))
        return made[-1]

    yield build
    for memories in made:
        memories.close()


@pytest.fixture
def reference(make: Make) -> ReferenceMemories:
    return ReferenceMemories(make())
