"""Fixture of all worlds: their ids, whichever of gymnasium and keep_agent the process has imported first."""

from __future__ import annotations

import pytest

from envs.worlds import register_worlds


@pytest.fixture(scope="session", autouse=True)
def _registered() -> None:
    register_worlds()
