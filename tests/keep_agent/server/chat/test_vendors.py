"""Requests as vendors' clients send them: nulls at every depth, fields without effect, the routes they call first."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from keep_agent.server.auth.tokens import OPEN, Access
from keep_agent.server.chat.request_fields import BadAgent, agent_of
from tests.keep_agent.server.chat.test_chat import ANTHROPIC, OPENAI, anthropic, openai, send
from tests.keep_agent.server.conftest import TOKENS, Build, Serve
from tests.keep_agent.server.serving import LiveServer

NEUTRAL_MESSAGE = {
    "name": None, "refusal": None, "tool_calls": None, "annotations": [], "audio": None, "function_call": None,
    "reasoning_content": None,
}  # fmt: skip


def unnamed(body: dict[str, Any]) -> dict[str, Any]:
    """A request that names no agent by ``user``."""
    return {name: value for name, value in body.items() if name != "user"}


def cached(answer: dict[str, Any]) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def ambiguous_names(description: dict[str, Any]) -> list[str]:
    """Schemas whose title is not their name, and operations that share an id.

    Generators name a class after a schema's title: where two share it, they drop every path that uses the second.
    """
    schemas = description["components"]["schemas"].items()
    operations = Counter(item["operationId"] for path in description["paths"].values() for item in path.values())
    shared = [name for name, count in operations.items() if count > 1]
    return [name for name, schema in schemas if schema.get("title") != name] + shared


def test_the_message_of_our_own_reply_is_accepted_as_an_official_client_dumps_it(server: LiveServer) -> None:
    first = send(server, OPENAI, openai("dumped"))
    reply = {**NEUTRAL_MESSAGE, **first["choices"][0]["message"]}
    assert reply["refusal"] is None
    messages = [*openai("dumped")["messages"], reply, {"role": "user", "content": "and then?"}]
    second = send(server, OPENAI, openai("dumped") | {"messages": messages})
    assert cached(second) >= first["usage"]["prompt_tokens"]


def test_the_content_of_our_own_reply_is_accepted_by_the_other_format(server: LiveServer) -> None:
    block = send(server, ANTHROPIC, anthropic("blocks"))["content"][0] | {"citations": None, "cache_control": None}
    messages = [*anthropic("blocks")["messages"], {"role": "assistant", "content": [block]}]
    messages.append(
        {"role": "user", "content": [{"type": "text", "text": "on", "cache_control": {"type": "ephemeral"}}]}
    )
    send(server, ANTHROPIC, anthropic("blocks") | {"messages": messages})


@pytest.mark.parametrize(
    "more",
    [
        {"stream_options": {"include_usage": None, "include_obfuscation": False}, "stop": None, "unheard_of": None},
        {"response_format": {"type": "text", "json_schema": None}, "tools": [], "logit_bias": {}},
        {"reasoning_effort": "none", "prompt_cache_retention": "24h", "metadata": {"a": None}},
    ],
)
def test_null_is_absent_at_every_depth(server: LiveServer, more: dict[str, Any]) -> None:
    plain = send(server, OPENAI, openai("plain", max_tokens=1))
    request = openai("nulls", max_tokens=1, **more)
    request["messages"] = [
        {"role": "user", "content": [{"type": "text", "text": request["messages"][0]["content"], "annotations": None}]}
    ]
    assert send(server, OPENAI, request)["choices"] == plain["choices"]


def test_null_is_absent_in_anthropic_requests(server: LiveServer) -> None:
    more = {"system": None, "tools": None, "container": None, "thinking": {"type": "disabled", "budget_tokens": None}}
    send(server, ANTHROPIC, anthropic("nulls", **more))
    assert "citations" in send(
        server, ANTHROPIC, anthropic("nulls", system=[{"type": "text", "text": "x", "citations": [1]}]), 400
    )["error"]["message"]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [("tool_calls", [{"id": "1"}]), ("refusal", "no"), ("audio", {"id": "1"}), ("name", "ann"), ("unheard_of", 0)],
)
def test_what_has_an_effect_is_refused_by_name_inside_a_message(server: LiveServer, field: str, value: Any) -> None:
    message = {"role": "assistant", "content": "x", field: value}
    refusal = send(server, OPENAI, openai("no") | {"messages": [message]}, 400)["error"]
    assert refusal["message"].startswith(f"{field} is not supported: leave it out")


def test_only_an_assistants_message_may_lack_content(server: LiveServer) -> None:
    messages = [{"role": "assistant", "content": None}, *openai("none")["messages"]]
    send(server, OPENAI, openai("none") | {"messages": messages})
    error = send(server, OPENAI, openai("none") | {"messages": [{"role": "user", "content": None}]}, 422)["error"]
    assert "content" in error["message"]


@pytest.mark.parametrize("field", ["prompt_cache_key", "safety_identifier"])
def test_newer_fields_for_a_user_name_the_agent_where_nothing_else_does(server: LiveServer, field: str) -> None:
    send(server, OPENAI, unnamed(openai("")) | {field: f"by-{field}"})
    assert cached(send(server, OPENAI, openai(f"by-{field}"))) > 0
    assert cached(send(server, OPENAI, openai(f"not-{field}", **{field: f"by-{field}"}))) == 0


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
    with serve("token-a", tokens=TOKENS) as (server, _):
        send(server, OPENAI, body)
        assert cached(send(server, OPENAI, openai("a"))) > 0
    with serve("token-ab", tokens=TOKENS) as (server, _):
        assert "X-Agent-ID" in send(server, OPENAI, body, 400)["error"]["message"]
        send(server, OPENAI, body | {"prompt_cache_key": "b"})


def test_a_model_can_be_looked_up(server: LiveServer) -> None:
    model = server.http.get("/v1/models/tiny").json()
    assert model == server.http.get("/v1/models").json()["data"][0] and model["id"] == "tiny"
    missing = server.http.get("/v1/models/org/other")
    assert missing.status_code == 404 and "'tiny'" in missing.json()["error"]["message"]


@pytest.mark.parametrize("go_on", [False, True])
def test_the_tokens_of_a_prompt_are_counted_as_they_are_used(server: LiveServer, go_on: bool) -> None:
    body = anthropic(f"counted-{go_on}", system="Be brief.")
    if go_on:
        body["messages"] = [*body["messages"], {"role": "assistant", "content": "2. find"}]
    prompt = {name: body[name] for name in ("model", "messages", "system")}
    token_count = send(server, f"{ANTHROPIC}/count_tokens", prompt | {"tools": None})
    usage = send(server, ANTHROPIC, body)["usage"]
    assert token_count == {"input_tokens": usage["cache_creation_input_tokens"]}
    refusal = send(server, f"{ANTHROPIC}/count_tokens", prompt | {"model": "other"}, 404)
    assert (refusal["type"], refusal["error"]["type"]) == ("error", "not_found_error")


def test_counting_tokens_tells_a_limited_token_nothing_of_agents(serve: Serve) -> None:
    """The number is the same whatever agents remember, and none is awoken or made."""
    body = anthropic("b")
    prompt = {name: body[name] for name in ("model", "messages")}
    with serve("token-ab", tokens=TOKENS) as (server, whole):
        before = send(server, f"{ANTHROPIC}/count_tokens", prompt)
        send(server, ANTHROPIC, body)
        with_header = send(server, f"{ANTHROPIC}/count_tokens", prompt, **{"X-Agent-ID": "b"})
        assert before == with_header
        assert whole.conversations.memories.stats()["agents"] == 1


@pytest.mark.parametrize(
    ("path", "use"), [("/v1/responses", OPENAI), ("/v1/responses/resp_1/cancel", OPENAI), ("/v1/completions", OPENAI)]
)
def test_what_is_not_served_names_what_to_use(server: LiveServer, path: str, use: str) -> None:
    answer = server.http.post(path, json={"model": "tiny", "input": "hello"})
    error = answer.json()["error"]
    assert answer.status_code == 404 and use in error["message"]
    assert {"type", "message", "param", "code"} == error.keys()
    batches = server.http.post("/v1/messages/batches", json={}).json()
    assert batches["type"] == "error" and ANTHROPIC in batches["error"]["message"]


def test_generators_find_one_name_for_each_schema_and_operation(build: Build) -> None:
    description = build().app.openapi()
    assert ambiguous_names(description) == []
    assert {OPENAI, ANTHROPIC, f"{ANTHROPIC}/count_tokens", "/v1/models/{model}"} <= description["paths"].keys()
