from __future__ import annotations

from collections.abc import Iterator

import pytest

from memory.engine.base import Engine
from memory.engine.models.tiny_models import FAMILIES, tiny_model
from memory.engine.transformers.engine import TransformersEngine


@pytest.fixture(scope="session", params=FAMILIES)
def any_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Every family in float32."""
    with TransformersEngine(tiny_model(request.param), "inline") as engine:
        yield engine


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    with TransformersEngine(tiny_model("qwen2"), "inline") as engine:
        yield engine
