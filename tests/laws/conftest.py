"""Engines for the laws, one per family, dtype and way of working: on the CPU, or on a CUDA device.

``KEEP_AGENT_LAWS_DEVICE=cuda`` puts the engines there. References and transformers' own forward stay on the CPU, with
the same weights: what they are compared with was computed by another device's kernels.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch

from memory.engine.base import Engine
from memory.engine.models.load import LoadedModel
from memory.engine.models.tiny_models import FAMILIES, tiny_model
from memory.engine.transformers.decoder import Decoder
from memory.engine.transformers.engine import TransformersEngine

DEVICE = os.environ.get("KEEP_AGENT_LAWS_DEVICE", "cpu")
GetEngine = Callable[..., Engine]


class JudgedEngine(TransformersEngine):
    """An engine on another device whose references are computed on the CPU."""

    def __init__(self, model: LoadedModel, device: str, transport: str = "auto", importance: str = "before") -> None:
        on_device = LoadedModel(model.name, Decoder(copy.deepcopy(model.module).to(device), model.spec), model.files)
        super().__init__(on_device, transport, importance=importance)
        self.model = model

    def forward_plain(
        self,
        ids: torch.Tensor,
        attention_mask: torch.Tensor | dict[str, torch.Tensor] | None = None,
        position_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Logits (rows, vocab) of transformers' own forward on the CPU."""
        given = {"attention_mask": attention_mask, "position_ids": position_ids, "use_cache": False}
        return self.plain(input_ids=torch.atleast_2d(ids).cpu(), **given).logits[0]


def make_engine(model: LoadedModel, transport: str = "inline", importance: str = "before") -> Engine:
    """An engine of ``model``'s weights on `DEVICE`."""
    if DEVICE == "cpu":
        return TransformersEngine(model, transport, importance=importance)
    return JudgedEngine(model, DEVICE, transport, importance)


@pytest.fixture(scope="session")
def engine_of() -> Iterator[GetEngine]:
    """An engine per family, dtype and way of working, built once."""

    @cache
    def make(
        family: str, dtype: torch.dtype = torch.float32, transport: str = "inline", importance: str = "before"
    ) -> Engine:
        made.append(make_engine(tiny_model(family, dtype=dtype), transport, importance))
        return made[-1]

    made: list[Engine] = []
    yield make
    for engine in made:
        engine.close()


@pytest.fixture(scope="session", params=FAMILIES)
def engine(request: pytest.FixtureRequest, engine_of: GetEngine) -> Engine:
    """Every family in float32."""
    return engine_of(request.param)
