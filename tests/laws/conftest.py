from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch

from memory.engine.engine import Engine
from memory.engine.families import FAMILIES, tiny_model

GetEngine = Callable[..., Engine]


@pytest.fixture(scope="session")
def engine_of() -> Iterator[GetEngine]:
    """An engine per family, dtype and way of working, built once."""

    @cache
    def make(
        family: str, dtype: torch.dtype = torch.float32, transport: str = "inline", importance: str = "before"
    ) -> Engine:
        made.append(Engine(tiny_model(family, dtype=dtype), transport, importance=importance))
        return made[-1]

    made: list[Engine] = []
    yield make
    for engine in made:
        engine.close()


@pytest.fixture(scope="session", params=FAMILIES)
def engine(request: pytest.FixtureRequest, engine_of: GetEngine) -> Engine:
    """Every family in float32."""
    return engine_of(request.param)
