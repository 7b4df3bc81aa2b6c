"""Fixtures of the simulator client's tests: a fake simulator with a toy home."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from envs.wah.virtualhome import client, transport
from envs.wah.virtualhome.client import Simulator
from tests.envs.wah.fake_simulator import FakeSimulator
from tests.envs.wah.virtualhome.toy import ToyHome, http
from tests.waiting import PATIENCE


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the time limits of `connect` for slow machines."""
    monkeypatch.setattr(client, "TIMEOUT", PATIENCE)
    monkeypatch.setattr(client, "DEADLINE", PATIENCE)


@pytest.fixture
def home() -> ToyHome:
    return ToyHome()


@pytest.fixture
def server(home: ToyHome) -> Iterator[FakeSimulator]:
    """Serve the toy home; check afterwards that all threads ended."""
    threads = set(threading.enumerate())
    with FakeSimulator(home) as server:
        yield server
        home.gate.set()
    assert set(threading.enumerate()) <= threads


@pytest.fixture
def simulator(server: FakeSimulator) -> Simulator:
    return Simulator(http(server))


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses between tries."""
    monkeypatch.setattr(transport, "FIRST_PAUSE", 0.005)
