"""Requests as vendors' clients send them: nulls at every depth, fields without effect, the routes they call first."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from keep_agent.server.auth.tokens import OPEN, Access
from keep_agent.server.chat.request_fields import BadAgent, agent_of
from tests.keep_agent.server.chat.test_chat import ANTHROPIC, OPENAI, anthropic, asked, openai
from tests.keep_agent.server.conftest import TOKENS, Build, Serve
from tests.keep_agent.server.serving import Served

NEUTRAL_MESSAGE = {
    "name": None, "refusal": None, "tool_calls": None, "annotations": [], "audio": None, "function_call": None,
    "reasoning_content": None,
}  # fmt: skip


def unnamed(body: dict[str, Any]) -> dict[str, Any]:
    """A request that names no agent by ``user``."""
    return {name: value for name, value in body.items() if name != "user"}


def cached(answer: dict[str, Any]) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def ambiguous_names(described: dict[str, Any]) -> list[str]:
    """Schemas whose title is not their name, and operations that share an id.

    Generators name a class after a schema's title: where two share it, they drop every path that uses the second.
    """
    schemas = described["components"]["schemas"].items()
    operations = Counter(one["operationId"] for path in described["paths"].values() for one in path.values())
    shared = [name for name, count in operations.items() if count > 1]
    return [name for name, schema in schemas if schema.get("title") != name] + shared


def test_the_message_of_our_own_reply_is_accepted_as_an_official_client_dumps_it(served: Served) -> None:
    first = asked(served, OPENAI, openai("dumped"))
    reply = {**NEUTRAL_MESSAGE, **first["choices"][0]["message"]}
    assert reply["refusal"] is None
    said = [*openai("dumped")["messages"], reply, {"role": "user", "content": "and then?"}]
    second = asked(served, OPENAI, openai("dumped") | {"messages": said})
    assert cached(second) >= first["usage"]["prompt_tokens"]


def test_the_content_of_our_own_reply_is_accepted_by_the_other_format(served: Served) -> None:
    block = asked(served, ANTHROPIC, anthropic("blocks"))["content"][0] | {"citations": None, "cache_control": None}
    said = [*anthropic("blocks")["messages"], {"role": "assistant", "content": [block]}]
    said.append({"role": "user", "content": [{"type": "text", "text": "on", "cache_control": {"type": "ephemeral"}}]})
    asked(served, ANTHROPIC, anthropic("blocks") | {"messages": said})


@pytest.mark.parametrize(
    "more",
    [
        {"stream_options": {"include_usage": None, "include_obfuscation": False}, "stop": None, "unheard_of": None},
        {"response_format": {"type": "text", "json_schema": None}, "tools": [], "logit_bias": {}},
        {"reasoning_effort": "none", "prompt_cache_retention": "24h", "metadata": {"a": None}},
    ],
)
def test_null_is_absent_at_every_depth(served: Served, more: dict[str, Any]) -> None:
    plain = asked(served, OPENAI, openai("plain", max_tokens=1))
    given = openai("nulls", max_tokens=1, **more)
    given["messages"] = [
        {"role": "user", "content": [{"type": "text", "text": given["messages"][0]["content"], "annotations": None}]}
    ]
    assert asked(served, OPENAI, given)["choices"] == plain["choices"]


def test_null_is_absent_in_anthropic_requests(served: Served) -> None:
    more = {"system": None, "tools": None, "container": None, "thinking": {"type": "disabled", "budget_tokens": None}}
    asked(served, ANTHROPIC, anthropic("nulls", **more))
    assert "citations" in asked(
        served, ANTHROPIC, anthropic("nulls", system=[{"type": "text", "text": "x", "citations": [1]}]), 400
    )["error"]["message"]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [("tool_calls", [{"id": "1"}]), ("refusal", "no"), ("audio", {"id": "1"}), ("name", "ann"), ("unheard_of", 0)],
)
def test_what_has_an_effect_is_refused_by_name_inside_a_message(served: Served, field: str, value: Any) -> None:
    message = {"role": "assistant", "content": "x", field: value}
    refused = asked(served, OPENAI, openai("no") | {"messages": [message]}, 400)["error"]
    assert refused["message"].startswith(f"{field} is not supported: leave it out")


def test_only_an_assistants_message_may_lack_content(served: Served) -> None:
    said = [{"role": "assistant", "content": None}, *openai("none")["messages"]]
    asked(served, OPENAI, openai("none") | {"messages": said})
    error = asked(served, OPENAI, openai("none") | {"messages": [{"role": "user", "content": None}]}, 422)["error"]
    assert "content" in error["message"]


@pytest.mark.parametrize("field", ["prompt_cache_key", "safety_identifier"])
def test_newer_fields_for_a_user_name_the_agent_where_nothing_else_does(served: Served, field: str) -> None:
    asked(served, OPENAI, unnamed(openai("")) | {field: f"by-{field}"})
    assert cached(asked(served, OPENAI, openai(f"by-{field}"))) > 0
    assert cached(asked(served, OPENAI, openai(f"not-{field}", **{field: f"by-{field}"}))) == 0


NO_IDS = ["my app: v1/é", "hash@x.y", "x" * 5000, "", "..", "nul", "a\n", "persist_1", "coord_x"]


@pytest.mark.parametrize("text", NO_IDS, ids=lambda text: repr(text[:12]))
def test_a_hint_that_cannot_be_an_id_counts_as_not_given(text: str) -> None:
    hints = text, "kitchen"
    assert agent_of(OPEN, None, None, hints=hints) == "kitchen"
    assert agent_of(OPEN, "hall", None, hints=hints) == "hall"
    assert agent_of(Access("one", frozenset({"b"})), None, None, hints=[text]) == "b"
    with pytest.raises(BadAgent, match="names no agent"):
        agent_of(OPEN, None, None, hints=[text, None])


def test_newer_fields_for_a_user_name_only_agents_that_the_token_may_use(serve: Serve) -> None:
    body = unnamed(openai("")) | {"safety_identifier": "stranger"}
    with serve("token-a", tokens=TOKENS) as (served, _):
        asked(served, OPENAI, body)
        assert cached(asked(served, OPENAI, openai("a"))) > 0
    with serve("token-ab", tokens=TOKENS) as (served, _):
        assert "X-Agent-ID" in asked(served, OPENAI, body, 400)["error"]["message"]
        asked(served, OPENAI, body | {"prompt_cache_key": "b"})


def test_a_model_can_be_looked_up(served: Served) -> None:
    found = served.http.get("/v1/models/tiny").json()
    assert found == served.http.get("/v1/models").json()["data"][0] and found["id"] == "tiny"
    missing = served.http.get("/v1/models/org/other")
    assert missing.status_code == 404 and "'tiny'" in missing.json()["error"]["message"]


@pytest.mark.parametrize("go_on", [False, True])
def test_the_tokens_of_a_prompt_are_counted_as_they_are_used(served: Served, go_on: bool) -> None:
    body = anthropic(f"counted-{go_on}", system="Be brief.")
    if go_on:
        body["messages"] = [*body["messages"], {"role": "assistant", "content": "2. find"}]
    prompt = {name: body[name] for name in ("model", "messages", "system")}
    counted = asked(served, f"{ANTHROPIC}/count_tokens", prompt | {"tools": None})
    usage = asked(served, ANTHROPIC, body)["usage"]
    assert counted == {"input_tokens": usage["cache_creation_input_tokens"]}
    refused = asked(served, f"{ANTHROPIC}/count_tokens", prompt | {"model": "other"}, 404)
    assert (refused["type"], refused["error"]["type"]) == ("error", "not_found_error")


def test_counting_tokens_tells_a_limited_token_nothing_of_agents(serve: Serve) -> None:
    """The number is the same whatever agents remember, and none is awoken or made."""
    body = anthropic("b")
    prompt = {name: body[name] for name in ("model", "messages")}
    with serve("token-ab", tokens=TOKENS) as (served, whole):
        before = asked(served, f"{ANTHROPIC}/count_tokens", prompt)
        asked(served, ANTHROPIC, body)
        with_header = asked(served, f"{ANTHROPIC}/count_tokens", prompt, **{"X-Agent-ID": "b"})
        assert before == with_header
        assert whole.conversations.memories.stats()["agents"] == 1


@pytest.mark.parametrize(
    ("path", "use"), [("/v1/responses", OPENAI), ("/v1/responses/resp_1/cancel", OPENAI), ("/v1/completions", OPENAI)]
)
def test_what_is_not_served_names_what_to_use(served: Served, path: str, use: str) -> None:
    answer = served.http.post(path, json={"model": "tiny", "input": "hello"})
    error = answer.json()["error"]
    assert answer.status_code == 404 and use in error["message"]
    assert {"type", "message", "param", "code"} == error.keys()
    batches = served.http.post("/v1/messages/batches", json={}).json()
    assert batches["type"] == "error" and ANTHROPIC in batches["error"]["message"]


def test_generators_find_one_name_for_each_schema_and_operation(build: Build) -> None:
    described = build().app.openapi()
    assert ambiguous_names(described) == []
    assert {OPENAI, ANTHROPIC, f"{ANTHROPIC}/count_tokens", "/v1/models/{model}"} <= described["paths"].keys()
