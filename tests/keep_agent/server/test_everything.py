"""What no request may do to the whole server, as its own description says how to ask."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from keep_agent.brain import brain_of
from keep_agent.server.service import Settings, make_service
from keep_agent.server.tokens import Access, Entry, Tokens, digest
from tests.keep_agent.server.serving import serving

TOKENS = Tokens((Entry(Access("all"), digest("ALL")),))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("tokens", [Tokens(open=True), TOKENS], ids=["open", "tokens"])
def test_nothing_that_is_asked_breaks_it(tiny_model: Path, tmp_path: Path, tokens: Tokens) -> None:
    """No 5xx but the two that are promised (closing, full); every error in the documented shape."""
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings

    brain = brain_of([f"model={tiny_model}", "prompt.encoder=hashed"])
    app = make_service(brain, tmp_path, tokens, Settings(viewer=False))
    with serving(app, None if tokens.open else "ALL") as served:
        schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
        head = {} if tokens.open else {"Authorization": "Bearer ALL"}
        served.http.post("/v1/agents", json={"id": "kitchen"})
        asked: list[str] = []
        for result in schema.get_all_operations():
            operation = result.ok()
            asked.append(f"{operation.method.upper()} {operation.path}")

            @settings(
                max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck),
                phases=[Phase.explicit, Phase.generate],
            )  # fmt: skip
            @given(case=operation.as_strategy())
            def ask(case: schemathesis.Case) -> None:
                if re.fullmatch(r"[\w.-]{1,64}", str(case.path_parameters.get("agent", "/"))):
                    case.path_parameters["agent"] = "kitchen"  # else nobody would be there to be asked
                answer = case.call(headers=head)
                assert answer.status_code < 500 or answer.status_code in (503, 507), (case, answer.text)
                if answer.status_code >= 400:
                    assert "error" in answer.json()

            ask()
        assert len(asked) >= 15
        assert served.http.get("/healthz").status_code == 200
        assert served.http.post("/v1/agents", json={"id": "another"}).status_code == 201
