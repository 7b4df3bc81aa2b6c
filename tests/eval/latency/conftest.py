"""Configs of latency runs as the command composes them, and small samples of the machine's rates."""

from __future__ import annotations

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig

from eval.latency import machine

QUICK = ("prompt.encoder=hashed", "latency.segments=4", "latency.segment_tokens=8", "latency.churn=1", "eval.threads=1")


def latency_config(*overrides: str) -> DictConfig:
    with initialize_config_module("configs", version_base="1.3"):
        return compose("latency", [*QUICK, *overrides])


@pytest.fixture(autouse=True)
def _small_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ROWS", {"cpu": 128})
    monkeypatch.setattr(machine, "COPY_BYTES", {"cpu": 4 << 20})
