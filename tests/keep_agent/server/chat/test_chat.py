"""Conversations over a tiny random model: formats, streams, reuse of rows, and requests of vendors' clients."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from keep_agent.server.auth.tokens import OPEN, Access
from keep_agent.server.chat.conversations import BadMessages, chat_text
from keep_agent.server.chat.detokenizer import Detokenizer
from keep_agent.server.chat.request_fields import BadAgent, agent_of
from memory.engine.base import ChunkSchedule, Engine
from tests.keep_agent.server.conftest import TOKENS, Serve
from tests.keep_agent.server.serving import LiveServer, events
from tests.laws.prompts import broken

OPENAI, ANTHROPIC = "/v1/chat/completions", "/v1/messages"


def openai(agent: str, text: str = "Robot: find a mug, 2.", **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "user": agent, "messages": [{"role": "user", "content": text}], "max_tokens": 12, **more}


UNNAMED = {name: value for name, value in openai("").items() if name != "user"}


def anthropic(agent: str, text: str = "Robot: find a mug, 2.", **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": "tiny", "metadata": {"user_id": agent}, "messages": messages, "max_tokens": 12, **more}


def send(server: LiveServer, path: str, body: dict[str, Any], code: int = 200, **headers: str) -> Any:
    answer = server.http.post(path, json=body, headers=headers)
    assert answer.status_code == code, answer.text
    return answer.json() if not body.get("stream") else events(answer.text)


def cached(answer: dict[str, Any]) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def text_of(chunk_events: list[tuple[str, Any]]) -> str:
    deltas = [data["choices"][0]["delta"] for _, data in chunk_events[:-1] if data.get("choices")]
    deltas += [data["delta"] for name, data in chunk_events if name == "content_block_delta"]
    return "".join(delta.get("content", delta.get("text", "")) for delta in deltas)


def test_the_same_prompt_of_the_same_agent_has_cached_tokens_and_the_same_answer(server: LiveServer) -> None:
    answers = [send(server, OPENAI, openai(agent)) for agent in ("mine", "mine", "yours")]
    prompt = answers[0]["usage"]["prompt_tokens"]
    assert [cached(answer) for answer in answers] == [0, prompt - 1, 0]
    assert answers[0]["usage"]["completion_tokens"] > 0 and answers[0]["choices"][0]["message"]["content"]
    assert answers[0]["choices"] == answers[1]["choices"] == answers[2]["choices"]


def test_a_continued_conversation_reuses_prompt_and_answer(server: LiveServer) -> None:
    first = send(server, OPENAI, openai("on"))
    answer = {"role": "assistant", "content": first["choices"][0]["message"]["content"]}
    messages = [*openai("on")["messages"], answer, {"role": "user", "content": "and then?"}]
    second = send(server, OPENAI, openai("on") | {"messages": messages})
    least = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"] - 4  # a character may lack bytes
    assert cached(second) >= least


def test_openai_streams_the_whole_answer(server: LiveServer) -> None:
    whole = send(server, OPENAI, openai("whole"))
    chunk_events = send(server, OPENAI, openai("told", stream=True, stream_options={"include_usage": True}))
    assert chunk_events[-1][1] == "[DONE]"
    chunks = [data for _, data in chunk_events[:-1]]
    assert text_of(chunk_events) == whole["choices"][0]["message"]["content"]
    assert chunks[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["usage"] == whole["usage"] and chunks[-1]["choices"] == []
    assert len({chunk["id"] for chunk in chunks}) == 1
    without = send(server, OPENAI, openai("without", stream=True))
    assert all("usage" not in data for _, data in without[:-1])


def test_anthropic_streams_the_whole_answer(server: LiveServer) -> None:
    whole = send(server, ANTHROPIC, anthropic("a-whole"))
    chunk_events = send(server, ANTHROPIC, anthropic("a-told", stream=True))
    names = [name for name, _ in chunk_events]
    assert names[:3] == ["message_start", "content_block_start", "ping"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert all(data["type"] == name for name, data in chunk_events)
    assert [{"type": "text", "text": text_of(chunk_events)}] == whole["content"]
    assert chunk_events[-2][1]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert chunk_events[-2][1]["usage"] == whole["usage"]
    again = send(server, ANTHROPIC, anthropic("a-whole"))
    assert again["usage"]["cache_read_input_tokens"] == whole["usage"]["cache_creation_input_tokens"] - 1


def test_generate_reports_the_reused_rows(server: LiveServer) -> None:
    body = {"prompt": "Robot: 1. find", "tokens": 5}
    first = send(server, "/v1/agents/raw/generate", body)
    assert (first["kind"], first["origin"], first["kept"], first["finish"]) == ("miss", "cold", 0, "length")
    chunk_events = send(server, "/v1/agents/raw/generate", body | {"stream": True})
    (name, end), done = chunk_events[-2:]
    assert name == "end" and done[1] == "[DONE]"
    assert end["origin"] == "hot" and end["kept"] == first["new"] - 1 and end["new"] == 1
    assert "".join(data["text"] for _, data in chunk_events[:-2]) == end["text"]
    longer = send(server, "/v1/agents/raw/generate", {"prompt": body["prompt"] + end["text"] + "x", "tokens": 1})
    assert longer["kind"] == "extend"


@pytest.mark.parametrize(("path", "field"), [(OPENAI, "stop"), (ANTHROPIC, "stop_sequences")])
def test_a_stop_ends_the_answer_and_is_no_part_of_it(server: LiveServer, path: str, field: str) -> None:
    make = openai if path == OPENAI else anthropic
    whole = send(server, path, make("stop-1"))
    text = whole["choices"][0]["message"]["content"] if path == OPENAI else whole["content"][0]["text"]
    stop = text[len(text) // 2 :][:2]
    body, before = make("stop-2", **{field: [stop, "never said"]}), text[: text.index(stop)]
    assert text_of(send(server, path, body | {"stream": True})) == before
    cut = send(server, path, body)
    if path == OPENAI:
        assert (cut["choices"][0]["message"]["content"], cut["choices"][0]["finish_reason"]) == (before, "stop")
    else:
        assert (cut["content"][0]["text"], cut["stop_reason"], cut["stop_sequence"]) == (before, "stop_sequence", stop)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0.7), ("n", 2), ("tools", [{"type": "function"}]), ("logprobs", True), ("what_is_this", 1),
        ("response_format", {"type": "json_object"}), ("n", True),
    ],
)  # fmt: skip
def test_fields_that_would_change_the_answer_are_refused_by_name(server: LiveServer, field: str, value: Any) -> None:
    error = send(server, OPENAI, openai("no", **{field: value}), 400)["error"]
    assert field in error["message"]
    if field == "temperature":
        assert "temperature=0" in error["message"]


def test_only_text_is_accepted(server: LiveServer) -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    a, b = (send(server, OPENAI, openai(f"parts-{n}", text)) for n, text in enumerate((parts, "one two")))
    assert a["choices"] == b["choices"]
    picture = [{"type": "image_url", "image_url": {"url": "http://x"}}]
    assert "content" in send(server, OPENAI, openai("parts", picture), 422)["error"]["message"]
    picture = [{"type": "image", "source": {}}]
    assert send(server, ANTHROPIC, anthropic("parts", picture), 422)["type"] == "error"


def test_unknown_models_and_excessive_requests_are_refused(server: LiveServer) -> None:
    assert "'tiny'" in send(server, OPENAI, openai("m") | {"model": "gpt"}, 404)["error"]["message"]
    assert "max_tokens" in send(server, OPENAI, openai("m", max_tokens=10**6), 400)["error"]["message"]
    assert "tokens" in send(server, OPENAI, openai("m", "word " * 9000), 413)["error"]["message"]
    assert "characters" in send(server, OPENAI, openai("m", "word " * 50000), 413)["error"]["message"]
    assert "stop" not in send(server, OPENAI, openai("m", stop=["x"] * 9), 400)["error"]["type"]
    assert send(server, OPENAI, openai("m"))["usage"]["prompt_tokens_details"]["cached_tokens"] == 0  # none is stored
    assert [model["id"] for model in server.http.get("/v1/models").json()["data"]] == ["tiny"]


@pytest.mark.parametrize("template", ["{{ 1 / 0 }}", "{{ raise_exception('roles must alternate') }}", 5])
def test_messages_that_the_template_refuses_are_a_bad_request(chat: PreTrainedTokenizerFast, template: Any) -> None:
    failing = PreTrainedTokenizerFast(tokenizer_object=chat.backend_tokenizer, chat_template=template)
    with pytest.raises(BadMessages, match="the model's chat template cannot make a prompt of these messages"):
        chat_text(failing, [("user", "go")])
    assert BadMessages.status == 400


def test_the_agent_is_named_by_header_then_body_then_token(server: LiveServer) -> None:
    send(server, OPENAI, openai("by-body"))
    by_header = send(server, OPENAI, openai("someone"), **{"X-Agent-ID": "by-body"})
    assert by_header["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert "X-Agent-ID" in send(server, OPENAI, UNNAMED, 400)["error"]["message"]


@pytest.mark.parametrize("agent", ["../x", "a/b", "a\tb", "x" * 65, "CON", ".hidden", "persist_handover_a", "", "é"])
def test_invalid_ids_are_refused(server: LiveServer, agent: str) -> None:
    for path, make in ((OPENAI, openai), (ANTHROPIC, anthropic)):
        send(server, path, make(agent), 400)


def test_rows_are_warm_after_a_restart(serve: Serve, tmp_path: Path) -> None:
    body = {"prompt": "Robot: 1. find a mug, 2. done", "tokens": 3}
    for origin in ("cold", "warm"):
        with serve(folder=tmp_path) as (server, _):
            chunk_events = send(server, "/v1/agents/robot/generate", body)
            assert (chunk_events["origin"], chunk_events["kept"] > 0) == (origin, origin == "warm")


def test_tokens_are_counted_up_to_the_stop(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The count excludes tokens that the scheduler made after the stop; with one token less the text has no stop."""
    path, body = "/v1/agents/counted/generate", {"prompt": "Robot: find a mug, 2.", "tokens": 60}
    text, feed = send(server, path, body)["text"], Detokenizer.feed

    def slowly(words: Detokenizer, token: int) -> str:
        time.sleep(0.02)
        return feed(words, token)

    monkeypatch.setattr(Detokenizer, "feed", slowly)
    stop = {"stop": [text[len(text) // 3 :][:2]]}
    chunk_events = send(server, path, body | stop)
    assert chunk_events["finish"] == "stop" and text.startswith(chunk_events["text"])
    count = chunk_events["generated"]
    assert send(server, path, body | stop | {"tokens": count})["finish"] == "stop"
    less = send(server, path, body | stop | {"tokens": count - 1})
    assert (less["finish"], less["generated"]) == ("length", count - 1)


def test_turns_and_agents_are_counted(serve: Serve) -> None:
    with serve() as (server, _):
        for agent in ("one", "two", "one"):
            send(server, OPENAI, openai(agent, max_tokens=1))
        figures = server.http.get("/metrics").text
    assert 'keep_agent_chat_tokens_total{kind="generated"} 3.0' in figures
    assert "keep_agent_chat_agents 2.0" in figures


def test_the_least_recent_agents_are_evicted_to_the_disk(serve: Serve, tmp_path: Path) -> None:
    body = {"prompt": "Robot: 1. find a mug, 2. done", "tokens": 1}
    with serve(folder=tmp_path, host_bytes=12_000) as (server, whole):
        for number in range(8):
            send(server, f"/v1/agents/robot-{number}/generate", body)
        assert 0 < whole.conversations.memories.stats()["agents"] < 8
        origins = [send(server, f"/v1/agents/robot-{number}/generate", body)["origin"] for number in (7, 0)]
    assert origins == ["hot", "warm"]


def test_a_thousand_agents_do_not_exclude_another(serve: Serve, engine: Engine) -> None:
    with serve() as (server, whole):
        memories = whole.conversations.memories
        for number in range(1100):
            with memories.turn(f"robot-{number}", "x") as prompt:
                engine.extend(prompt.cache, prompt.new, ChunkSchedule())
                memories.finish(prompt)
        send(server, OPENAI, openai("late", max_tokens=1))
        assert memories.stats()["agents"] == 1101


@pytest.mark.parametrize("path", [OPENAI, ANTHROPIC])
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_without_finite_logits_is_an_error(serve: Serve, engine: Engine, path: str, stream: bool) -> None:
    body = (openai if path == OPENAI else anthropic)("kitchen", stream=stream)
    with serve() as (server, _), broken(engine, float("nan")):
        answer = server.http.post(path, json=body)
    if stream and answer.status_code == 200:
        chunk_events = [data for _, data in events(answer.text) if isinstance(data, dict) and "error" in data]
        assert len(chunk_events) == 1 and "not finite in float32" in chunk_events[0]["error"]["message"]
    else:
        assert answer.status_code == 500 and "not finite in float32" in answer.json()["error"]["message"]


NEUTRAL_MESSAGE = {
    "name": None, "refusal": None, "tool_calls": None, "annotations": [], "audio": None, "function_call": None,
    "reasoning_content": None,
}  # fmt: skip


def test_our_reply_is_accepted_as_an_official_client_sends_it_back(server: LiveServer) -> None:
    first = send(server, OPENAI, openai("dumped"))
    reply = {**NEUTRAL_MESSAGE, **first["choices"][0]["message"]}
    assert reply["refusal"] is None
    messages = [*openai("dumped")["messages"], reply, {"role": "user", "content": "and then?"}]
    second = send(server, OPENAI, openai("dumped") | {"messages": messages})
    assert cached(second) >= first["usage"]["prompt_tokens"]


def test_our_reply_is_accepted_in_anthropics_format(server: LiveServer) -> None:
    block = send(server, ANTHROPIC, anthropic("blocks"))["content"][0] | {"citations": None, "cache_control": None}
    request = {"type": "text", "text": "on", "cache_control": {"type": "ephemeral"}}
    turns = [{"role": "assistant", "content": [block]}, {"role": "user", "content": [request]}]
    send(server, ANTHROPIC, anthropic("blocks") | {"messages": [*anthropic("blocks")["messages"], *turns]})


@pytest.mark.parametrize(
    "more",
    [
        {"stream_options": {"include_usage": None, "include_obfuscation": False}, "stop": None, "unheard_of": None},
        {"response_format": {"type": "text", "json_schema": None}, "tools": [], "logit_bias": {}},
        {"temperature": 0, "n": 1, "tools": None, "top_p": 1.0, "seed": 4},
        {"reasoning_effort": "none", "prompt_cache_retention": "24h", "metadata": {"a": None}},
    ],
)
def test_null_at_every_depth_and_fields_without_effect_are_accepted(server: LiveServer, more: dict[str, Any]) -> None:
    plain = send(server, OPENAI, openai("plain", max_tokens=1))
    request = openai("nulls", max_tokens=1, **more)
    part = {"type": "text", "text": request["messages"][0]["content"], "annotations": None}
    request["messages"] = [{"role": "user", "content": [part]}]
    assert send(server, OPENAI, request)["choices"] == plain["choices"]


def test_null_is_absent_in_anthropic_requests(server: LiveServer) -> None:
    more = {"system": None, "tools": None, "container": None, "thinking": {"type": "disabled", "budget_tokens": None}}
    send(server, ANTHROPIC, anthropic("nulls", **more))
    system = [{"type": "text", "text": "x", "citations": [1]}]
    assert "citations" in send(server, ANTHROPIC, anthropic("nulls", system=system), 400)["error"]["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("tool_calls", [{"id": "1"}]), ("refusal", "no"), ("audio", {"id": "1"}), ("name", "ann"), ("unheard_of", 0)],
)
def test_fields_of_a_message_with_an_effect_are_refused_by_name(server: LiveServer, field: str, value: Any) -> None:
    message = {"role": "assistant", "content": "x", field: value}
    refusal = send(server, OPENAI, openai("no") | {"messages": [message]}, 400)["error"]
    assert refusal["message"].startswith(f"{field} is not supported: leave it out")


def test_only_an_assistants_message_may_lack_content(server: LiveServer) -> None:
    messages = [{"role": "assistant", "content": None}, *openai("none")["messages"]]
    send(server, OPENAI, openai("none") | {"messages": messages})
    error = send(server, OPENAI, openai("none") | {"messages": [{"role": "user", "content": None}]}, 422)["error"]
    assert "content" in error["message"]


@pytest.mark.parametrize("field", ["prompt_cache_key", "safety_identifier"])
def test_newer_fields_for_a_user_name_the_agent_last(server: LiveServer, field: str) -> None:
    send(server, OPENAI, UNNAMED | {field: f"by-{field}"})
    assert cached(send(server, OPENAI, openai(f"by-{field}"))) > 0
    assert cached(send(server, OPENAI, openai(f"not-{field}", **{field: f"by-{field}"}))) == 0


NO_IDS = ["my app: v1/é", "hash@x.y", "x" * 5000, "", "..", "nul", "a\n", "persist_1", "coord_x"]


@pytest.mark.parametrize("text", NO_IDS, ids=lambda text: repr(text[:12]))
def test_a_hint_that_cannot_be_an_id_is_ignored(text: str) -> None:
    hints = text, "kitchen"
    assert agent_of(OPEN, None, None, hints=hints) == "kitchen"
    assert agent_of(OPEN, "hall", None, hints=hints) == "hall"
    assert agent_of(Access("one", frozenset({"b"})), None, None, hints=[text]) == "b"
    with pytest.raises(BadAgent, match="names no agent"):
        agent_of(OPEN, None, None, hints=[text, None])


def test_newer_fields_for_a_user_name_only_the_tokens_agents(serve: Serve) -> None:
    body = UNNAMED | {"safety_identifier": "stranger"}
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
def test_counted_tokens_are_those_of_the_prompt(server: LiveServer, go_on: bool) -> None:
    body = anthropic(f"counted-{go_on}", system="Be brief.")
    if go_on:
        body["messages"] = [*body["messages"], {"role": "assistant", "content": "2. find"}]
    prompt = {name: body[name] for name in ("model", "messages", "system")}
    token_count = send(server, f"{ANTHROPIC}/count_tokens", prompt | {"tools": None})
    usage = send(server, ANTHROPIC, body)["usage"]
    assert token_count == {"input_tokens": usage["cache_creation_input_tokens"]}
    refusal = send(server, f"{ANTHROPIC}/count_tokens", prompt | {"model": "other"}, 404)
    assert (refusal["type"], refusal["error"]["type"]) == ("error", "not_found_error")


def test_counting_tokens_reads_no_agents_memory(serve: Serve) -> None:
    """The number does not depend on memories, and no agent is loaded or made."""
    body = anthropic("b")
    prompt = {name: body[name] for name in ("model", "messages")}
    with serve("token-ab", tokens=TOKENS) as (server, whole):
        before = send(server, f"{ANTHROPIC}/count_tokens", prompt)
        send(server, ANTHROPIC, body)
        assert send(server, f"{ANTHROPIC}/count_tokens", prompt, **{"X-Agent-ID": "b"}) == before
        assert whole.conversations.memories.stats()["agents"] == 1


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/resp_1/cancel", "/v1/completions"])
def test_unsupported_endpoints_name_the_one_to_use(server: LiveServer, path: str) -> None:
    answer = server.http.post(path, json={"model": "tiny", "input": "hello"})
    error = answer.json()["error"]
    assert answer.status_code == 404 and OPENAI in error["message"]
    assert {"type", "message", "param", "code"} == error.keys()
    batches = server.http.post("/v1/messages/batches", json={}).json()
    assert batches["type"] == "error" and ANTHROPIC in batches["error"]["message"]
