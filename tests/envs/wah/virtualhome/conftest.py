"""A stand-in that serves a toy home."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from envs.wah.virtualhome import client, transport
from tests.envs.wah.standin import StandIn
from tests.envs.wah.virtualhome.toy import ToyHome
from tests.waiting import PATIENCE


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """For simulators that are named by their address."""
    monkeypatch.setattr(client, "TIMEOUT", PATIENCE)
    monkeypatch.setattr(client, "DEADLINE", PATIENCE)


@pytest.fixture
def home() -> ToyHome:
    return ToyHome()


@pytest.fixture
def standin(home: ToyHome) -> Iterator[StandIn]:
    """Afterwards none of its threads is left."""
    threads = set(threading.enumerate())
    with StandIn(home) as standin:
        yield standin
        home.gate.set()
    assert set(threading.enumerate()) <= threads


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short ones."""
    monkeypatch.setattr(transport, "FIRST_PAUSE", 0.005)
