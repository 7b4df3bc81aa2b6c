"""Fixture for small samples of a machine's rates, whose values are not tested."""

from __future__ import annotations

import pytest

from eval.latency import rates


@pytest.fixture(autouse=True)
def _small_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "ROWS", {"cpu": 128})
    monkeypatch.setattr(rates, "COPY_BYTES", {"cpu": 4 << 20})
