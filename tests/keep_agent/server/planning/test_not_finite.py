"""Law 11 over HTTP: a plan by a model whose logits are no numbers is an error, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from keep_agent.agent.client import Client, ServerError
from keep_agent.config.planner_factory import Brain
from keep_agent.server.service import make_service
from tests.keep_agent.server.planning.shared import MUG, OPEN, SETTINGS, SKILLS
from tests.keep_agent.server.serving import serving
from tests.laws.prompts import broken
from tests.waiting import PATIENCE


def test_a_plan(make_brain: Callable[[], Brain], tmp_path: Any) -> None:
    brain = make_brain()
    app = make_service(brain, tmp_path / "server", OPEN, SETTINGS)
    with serving(app) as served, Client(served.url, timeout=PATIENCE) as client:
        agent = client.agent("kitchen")
        agent.observe([MUG])
        with broken(brain.engine, float("nan")), pytest.raises(ServerError, match="logits are not finite in") as caught:
            agent.plan("get the mug", SKILLS)
        assert caught.value.status == httpx.codes.INTERNAL_SERVER_ERROR
        assert caught.value.retry_after is None and agent.about().decisions == 0
        assert agent.plan("get the mug", SKILLS).skill in SKILLS
