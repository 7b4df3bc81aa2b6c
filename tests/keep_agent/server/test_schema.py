"""OpenAPI description of the whole server: valid and invalid requests get the answers that it describes."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

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

from keep_agent.server.auth.tokens import Tokens
from keep_agent.server.settings import ChatLimits, Settings
from tests.keep_agent.server.conftest import OPEN, TOKENS, Service
from tests.keep_agent.server.serving import serving
from tests.waiting import PATIENCE

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
MODES = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
EVERY = list(HealthCheck)
AGENT = re.compile(r"[\w.-]{1,64}")
PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/agents/{agent}/generate", "/v1/agents/{agent}/plan")
SMALL = ChatLimits(max_tokens=8, tokens=4, scenario_tokens=8, scenario_turns=8, scenarios=1000)


def ambiguous_names(description: dict[str, Any]) -> list[str]:
    """Return schemas whose title is not their name, and operations that share an id: code generators drop these."""
    schemas = description["components"]["schemas"].items()
    operations = Counter(item["operationId"] for path in description["paths"].values() for item in path.values())
    shared = [name for name, count in operations.items() if count > 1]
    return [name for name, schema in schemas if schema.get("title") != name] + shared


@pytest.mark.parametrize("tokens", [OPEN, TOKENS], ids=["open", "tokens"])
@pytest.mark.parametrize("examples", [12, pytest.param(400, marks=(pytest.mark.slow, pytest.mark.timeout(1800)))])
def test_answers_are_as_described(service: Service, tmp_path: Path, tokens: Tokens, examples: int) -> None:
    token = None if tokens.open else "token-all"
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    statuses: dict[str, set[int]] = {}
    with serving(service(tmp_path, tokens, Settings(chat=SMALL, viewer=False)), token) as server:
        model = server.http.get("/v1/models").json()["data"][0]["id"]
        schema_json = server.http.get("/openapi.json").json()
        assert ambiguous_names(schema_json) == []
        scores = schema_json["components"]["schemas"]["Decided"]["properties"]["scores"]
        del scores["items"]  # pairs, whose description schemathesis takes for invalid

        def ask(case: schemathesis.Case) -> None:
            if isinstance(case.body, dict) and "model" in case.body:
                case.body["model"] = model
            if AGENT.fullmatch(str(case.path_parameters.get("agent", "/"))):
                case.path_parameters["agent"] = "kitchen"
            answer = case.call_and_validate(base_url=server.url, headers=headers, checks=CHECKS, timeout=PATIENCE)
            statuses.setdefault(case.operation.label, set()).add(answer.status_code)

        schema = schemathesis.openapi.from_dict(schema_json)
        for result in schema.get_all_operations():
            server.http.post("/v1/agents", json={"id": "kitchen"})  # it may have been deleted
            cases = [result.ok().as_strategy(generation_mode=mode) for mode in MODES]
            known = settings(max_examples=examples, database=None, suppress_health_check=EVERY)
            known(given(case=one_of(cases))(ask))()
        assert server.http.get("/healthz").status_code == 200
    assert len(statuses) >= 20
    assert any(200 in statuses[f"POST {path}"] for path in PATHS), statuses  # some examples succeed
