"""Law 11 over HTTP: a model whose logits are no numbers answers with an error and its reason, in every protocol."""

from __future__ import annotations

import pytest

from memory.engine.base import Engine
from tests.keep_agent.server.conftest import Serve
from tests.keep_agent.server.serving import events
from tests.laws.prompts import broken

NAN = float("nan")
SAID = {"model": "tiny", "messages": [{"role": "user", "content": "find a mug"}], "max_tokens": 8}
HEADERS = {"x-agent-id": "kitchen"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation(serve: Serve, engine: Engine, path: str, stream: bool) -> None:
    with serve() as (served, _), broken(engine, NAN):
        answer = served.http.post(path, json=SAID | {"stream": stream}, headers=HEADERS)
    if stream and answer.status_code == 200:
        told = [data for _, data in events(answer.text) if isinstance(data, dict) and "error" in data]
        assert len(told) == 1 and "not finite in float32" in told[0]["error"]["message"]
    else:
        assert answer.status_code == 500 and "not finite in float32" in answer.json()["error"]["message"]
