"""Whatever fits the description of the server, and much that does not, gets an answer it describes."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import one_of
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from keep_agent.server.chat.settings import ChatLimits
from tests.keep_agent.server.conftest import OPEN, TOKENS, Serve

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
POSITIVE, NEGATIVE = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
EVERY = list(HealthCheck)
TALK = ("/v1/chat/completions", "/v1/messages", "/v1/agents/{agent}/generate")
SMALL = ChatLimits(max_tokens=8, tokens=4, scenario_tokens=8, scenario_turns=8, agents=None, scenarios=1000)


def hunt(serve: Serve, tokens: bool, examples: int) -> None:
    token = "token-all" if tokens else None
    answered: dict[str, set[int]] = {}
    with serve(token, tokens=TOKENS if tokens else OPEN, chat_limits=SMALL) as (served, whole):
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}

        def ask(case: schemathesis.Case) -> None:
            if isinstance(case.body, dict) and "model" in case.body:
                case.body["model"] = "tiny"  # else hardly anything gets that far
            answer = case.call_and_validate(base_url=served.url, headers=headers, checks=CHECKS)
            answered.setdefault(case.operation.label, set()).add(answer.status_code)

        schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
        for result in schema.get_all_operations():
            cases = [result.ok().as_strategy(generation_mode=mode) for mode in (POSITIVE, NEGATIVE)]
            known = settings(max_examples=examples, deadline=None, database=None, suppress_health_check=EVERY)
            known(given(case=one_of(cases))(ask))()
        assert not whole.conversations._works
    assert len(answered) >= 12
    assert any(200 in answered[f"POST {path}"] for path in TALK), answered  # some examples do get that far


@pytest.mark.parametrize("tokens", [False, True])
def test_answers_are_as_described(serve: Serve, tokens: bool) -> None:
    hunt(serve, tokens, 40)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [False, True])
def test_answers_are_as_described_at_length(serve: Serve, tokens: bool) -> None:
    hunt(serve, tokens, 500)
