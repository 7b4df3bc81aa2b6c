from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import torch

from memory.engine.cpu.half_precision_matmul import onednn_multiplies
from memory.engine.models.tiny_models import FAMILIES, tiny_model
from memory.engine.transformers.engine import Engine
from tests.memory.engine.pairs import GetEngine


@pytest.fixture(scope="session")
def native_bfloat16() -> None:
    """A skip where the CPU has no instructions for it."""
    if not onednn_multiplies(torch.bfloat16):
        pytest.skip("this processor has no products in bfloat16")


@pytest.fixture(scope="session", params=FAMILIES)
def any_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Every family in float32."""
    with Engine(tiny_model(request.param), "inline") as engine:
        yield engine


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    with Engine(tiny_model("qwen2"), "inline") as engine:
        yield engine


@pytest.fixture(scope="session")
def engine_of() -> Iterator[GetEngine]:
    """Two layers of every family, built once."""
    made: list[Engine] = []

    @cache
    def make(family: str = "qwen2", dtype: torch.dtype = torch.float64) -> Engine:
        made.append(Engine(tiny_model(family, layers=2, dtype=dtype), "inline"))
        made[-1].model.module.set_experts_implementation("eager")  # others know no float64
        return made[-1]

    yield make
    for engine in made:
        engine.close()
