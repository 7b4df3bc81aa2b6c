"""Latency config for tests, composed as the command composes it."""

from __future__ import annotations

from hydra import compose, initialize_config_module
from omegaconf import DictConfig

QUICK = ("prompt.encoder=hashed", "latency.segments=4", "latency.segment_tokens=8", "latency.churn=1", "eval.threads=1")


def latency_config(*overrides: str) -> DictConfig:
    with initialize_config_module("configs", version_base="1.3"):
        return compose("latency", [*QUICK, *overrides])
