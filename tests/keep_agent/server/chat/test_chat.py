"""Conversations over a tiny random model: formats, rows, streams."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from keep_agent.server.chat.conversations import BadMessages, ChatMessage, prompt_of
from keep_agent.server.chat.detokenizer import Detokenizer
from memory.engine.base import ChunkSchedule, Engine
from tests.keep_agent.server.conftest import Serve
from tests.keep_agent.server.serving import LiveServer, events
from tests.laws.prompts import broken

OPENAI, ANTHROPIC = "/v1/chat/completions", "/v1/messages"


def openai(agent: str, text: str = "Robot: find a mug, 2.", **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "user": agent, "messages": [{"role": "user", "content": text}], "max_tokens": 12, **more}


def anthropic(agent: str, text: str = "Robot: find a mug, 2.", **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"model": "tiny", "metadata": {"user_id": agent}, "messages": messages, "max_tokens": 12, **more}


def send(server: LiveServer, path: str, body: dict[str, Any], code: int = 200, **headers: str) -> Any:
    answer = server.http.post(path, json=body, headers=headers)
    assert answer.status_code == code, answer.text
    return answer.json() if not body.get("stream") else events(answer.text)


def text_of(chunk_events: list[tuple[str, Any]]) -> str:
    """The text of a stream, of either format."""
    deltas = [data["choices"][0]["delta"] for _, data in chunk_events[:-1] if data.get("choices")]
    deltas += [data["delta"] for name, data in chunk_events if name == "content_block_delta"]
    return "".join(delta.get("content", delta.get("text", "")) for delta in deltas)


def test_the_same_prompt_again_has_cached_tokens_and_the_same_answer(server: LiveServer) -> None:
    first, second = (send(server, OPENAI, openai("again")) for _ in range(2))
    assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    prompt = second["usage"]["prompt_tokens"]
    assert second["usage"]["prompt_tokens_details"] == {"cached_tokens": prompt - 1}
    assert first["usage"]["completion_tokens"] > 0
    assert first["choices"][0]["message"]["content"]


def test_another_agent_finds_nothing_of_it(server: LiveServer) -> None:
    for agent in ("mine", "yours"):
        assert send(server, OPENAI, openai(agent, "only mine"))["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_conversation_that_goes_on_keeps_all_that_was_said(server: LiveServer) -> None:
    first = send(server, OPENAI, openai("on"))
    messages = [
        *openai("on")["messages"],
        {"role": "assistant", "content": first["choices"][0]["message"]["content"]},
        {"role": "user", "content": "and then?"},
    ]
    second = send(server, OPENAI, openai("on") | {"messages": messages})
    least = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"] - 4  # a character may lack bytes
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= least


def test_openai_streams_what_it_answers(server: LiveServer) -> None:
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


def test_anthropic_streams_what_it_answers(server: LiveServer) -> None:
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


def test_generate_says_what_was_there(server: LiveServer) -> None:
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


@pytest.mark.parametrize("path", [OPENAI, ANTHROPIC])
def test_a_stop_ends_the_answer_and_is_no_part_of_it(server: LiveServer, path: str) -> None:
    make = openai if path == OPENAI else anthropic
    whole = send(server, path, make("stop-1"))
    text = whole["choices"][0]["message"]["content"] if path == OPENAI else whole["content"][0]["text"]
    stop = text[len(text) // 2 :][:2]
    field = "stop" if path == OPENAI else "stop_sequences"
    for more in ({}, {"stream": True}):
        cut = send(server, path, make("stop-2", **{field: [stop, "never said"]}, **more))
        if more:
            assert text_of(cut) == text[: text.index(stop)]
        elif path == OPENAI:
            assert cut["choices"][0]["message"]["content"] == text[: text.index(stop)]
            assert cut["choices"][0]["finish_reason"] == "stop"
        else:
            assert cut["content"][0]["text"] == text[: text.index(stop)]
            assert (cut["stop_reason"], cut["stop_sequence"]) == ("stop_sequence", stop)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 0.7), ("n", 2), ("tools", [{"type": "function"}]), ("logprobs", True), ("what_is_this", 1),
        ("response_format", {"type": "json_object"}), ("n", True),
    ],
)  # fmt: skip
def test_what_would_change_the_answer_is_refused_by_name(server: LiveServer, field: str, value: Any) -> None:
    error = send(server, OPENAI, openai("no", **{field: value}), 400)["error"]
    assert field in error["message"]
    if field == "temperature":
        assert "temperature=0" in error["message"]


def test_what_changes_nothing_is_taken(server: LiveServer) -> None:
    send(server, OPENAI, openai("yes", temperature=0, n=1, tools=None, top_p=1.0, seed=4, max_tokens=1))


def test_only_text_is_understood(server: LiveServer) -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    a, b = (send(server, OPENAI, openai(f"parts-{n}", text)) for n, text in enumerate((parts, "one two")))
    assert a["choices"] == b["choices"]
    picture = [{"type": "image_url", "image_url": {"url": "http://x"}}]
    assert "content" in send(server, OPENAI, openai("parts", picture), 422)["error"]["message"]
    picture = [{"type": "image", "source": {}}]
    assert send(server, ANTHROPIC, anthropic("parts", picture), 422)["type"] == "error"


def test_what_is_no_model_or_too_much_is_refused(server: LiveServer) -> None:
    assert "'tiny'" in send(server, OPENAI, openai("m") | {"model": "gpt"}, 404)["error"]["message"]
    assert "max_tokens" in send(server, OPENAI, openai("m", max_tokens=10**6), 400)["error"]["message"]
    assert "tokens" in send(server, OPENAI, openai("m", "word " * 9000), 413)["error"]["message"]
    assert "characters" in send(server, OPENAI, openai("m", "word " * 50000), 413)["error"]["message"]
    assert "stop" not in send(server, OPENAI, openai("m", stop=["x"] * 9), 400)["error"]["type"]
    assert send(server, OPENAI, openai("m"))["usage"]["prompt_tokens_details"]["cached_tokens"] == 0  # none was kept
    assert [model["id"] for model in server.http.get("/v1/models").json()["data"]] == ["tiny"]


@pytest.mark.parametrize("template", ["{{ 1 / 0 }}", "{{ raise_exception('roles must alternate') }}", 5])
def test_what_the_chat_template_does_not_take_is_a_bad_request(chat: PreTrainedTokenizerFast, template: Any) -> None:
    failing = PreTrainedTokenizerFast(tokenizer_object=chat.backend_tokenizer, chat_template=template)
    with pytest.raises(BadMessages, match="the model's chat template makes no prompt of these messages"):
        prompt_of(failing, [ChatMessage("user", "go")])
    assert BadMessages.status == 400


def test_whose_rows_is_said_by_header_then_body_then_token(server: LiveServer) -> None:
    send(server, OPENAI, openai("by-body"))
    by_header = send(server, OPENAI, openai("someone"), **{"X-Agent-ID": "by-body"})
    assert by_header["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    body = openai("")
    del body["user"]
    assert "X-Agent-ID" in send(server, OPENAI, body, 400)["error"]["message"]


@pytest.mark.parametrize("agent", ["../x", "a/b", "a\tb", "x" * 65, "CON", ".hidden", "persist_handover_a", "", "é"])
def test_ids_that_are_no_names_are_refused(server: LiveServer, agent: str) -> None:
    for path, make in ((OPENAI, openai), (ANTHROPIC, anthropic)):
        send(server, path, make(agent), 400)


def test_rows_are_warm_after_a_restart(serve: Serve, tmp_path: Path) -> None:
    body = {"prompt": "Robot: 1. find a mug, 2. done", "tokens": 3}
    for origin in ("cold", "warm"):
        with serve(folder=tmp_path) as (server, _):
            chunk_events = send(server, "/v1/agents/robot/generate", body)
            assert (chunk_events["origin"], chunk_events["kept"] > 0) == (origin, origin == "warm")


def test_tokens_are_counted_up_to_the_stop(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many the model went on to say, which it has time for here: with one less it would not have got there."""
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


def test_those_who_spoke_long_ago_make_room_on_the_disk(serve: Serve, tmp_path: Path) -> None:
    body = {"prompt": "Robot: 1. find a mug, 2. done", "tokens": 1}
    with serve(folder=tmp_path, host_bytes=12_000) as (server, whole):
        for number in range(8):
            send(server, f"/v1/agents/robot-{number}/generate", body)
        assert 0 < whole.conversations.memories.stats()["agents"] < 8
        origins = [send(server, f"/v1/agents/robot-{number}/generate", body)["origin"] for number in (7, 0)]
    assert origins == ["hot", "warm"]


def test_nobody_is_refused_for_the_number_of_others(serve: Serve, engine: Engine) -> None:
    with serve() as (server, whole):
        memories = whole.conversations.memories
        for number in range(1100):
            with memories.turn(f"robot-{number}", "x") as prompt:
                engine.extend(prompt.cache, prompt.new, ChunkSchedule())
                memories.finish(prompt)
        send(server, OPENAI, openai("late", max_tokens=1))
        assert memories.stats()["agents"] == 1101


NAN = float("nan")
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "find a mug"}], "max_tokens": 8}
HEADERS = {"x-agent-id": "kitchen"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation(serve: Serve, engine: Engine, path: str, stream: bool) -> None:
    with serve() as (server, _), broken(engine, NAN):
        answer = server.http.post(path, json=BODY | {"stream": stream}, headers=HEADERS)
    if stream and answer.status_code == 200:
        chunk_events = [data for _, data in events(answer.text) if isinstance(data, dict) and "error" in data]
        assert len(chunk_events) == 1 and "not finite in float32" in chunk_events[0]["error"]["message"]
    else:
        assert answer.status_code == 500 and "not finite in float32" in answer.json()["error"]["message"]
