"""Conversations over a tiny random model: formats, rows, streams."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from keep_agent.server.chat.detokenizer import Detokenizer
from keep_agent.server.chat.prompts import BadMessages, ChatMessage, prompt_of
from memory.engine.base import ChunkSchedule, Engine
from tests.keep_agent.server.conftest import Serve
from tests.keep_agent.server.serving import Served, events

OPENAI, ANTHROPIC = "/v1/chat/completions", "/v1/messages"


def openai(agent: str, text: str = "Robot: find a mug, 2.", **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "user": agent, "messages": [{"role": "user", "content": text}], "max_tokens": 12, **more}


def anthropic(agent: str, text: str = "Robot: find a mug, 2.", **more: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": text}]
    return {"model": "tiny", "metadata": {"user_id": agent}, "messages": said, "max_tokens": 12, **more}


def asked(served: Served, path: str, body: dict[str, Any], code: int = 200, **headers: str) -> Any:
    answer = served.http.post(path, json=body, headers=headers)
    assert answer.status_code == code, answer.text
    return answer.json() if not body.get("stream") else events(answer.text)


def heard(told: list[tuple[str, Any]]) -> str:
    """The text of a stream, of either format."""
    deltas = [data["choices"][0]["delta"] for _, data in told[:-1] if data.get("choices")]
    deltas += [data["delta"] for name, data in told if name == "content_block_delta"]
    return "".join(delta.get("content", delta.get("text", "")) for delta in deltas)


def test_the_same_prompt_again_has_cached_tokens_and_the_same_answer(served: Served) -> None:
    first, second = (asked(served, OPENAI, openai("again")) for _ in range(2))
    assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    prompt = second["usage"]["prompt_tokens"]
    assert second["usage"]["prompt_tokens_details"] == {"cached_tokens": prompt - 1}
    assert first["usage"]["completion_tokens"] > 0
    assert first["choices"][0]["message"]["content"]


def test_another_agent_finds_nothing_of_it(served: Served) -> None:
    for agent in ("mine", "yours"):
        assert asked(served, OPENAI, openai(agent, "only mine"))["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_conversation_that_goes_on_keeps_all_that_was_said(served: Served) -> None:
    first = asked(served, OPENAI, openai("on"))
    said = [
        *openai("on")["messages"],
        {"role": "assistant", "content": first["choices"][0]["message"]["content"]},
        {"role": "user", "content": "and then?"},
    ]
    second = asked(served, OPENAI, openai("on") | {"messages": said})
    least = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"] - 4  # a character may lack bytes
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= least


def test_openai_streams_what_it_answers(served: Served) -> None:
    whole = asked(served, OPENAI, openai("whole"))
    told = asked(served, OPENAI, openai("told", stream=True, stream_options={"include_usage": True}))
    assert told[-1][1] == "[DONE]"
    chunks = [data for _, data in told[:-1]]
    assert heard(told) == whole["choices"][0]["message"]["content"]
    assert chunks[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["usage"] == whole["usage"] and chunks[-1]["choices"] == []
    assert len({chunk["id"] for chunk in chunks}) == 1
    without = asked(served, OPENAI, openai("without", stream=True))
    assert all("usage" not in data for _, data in without[:-1])


def test_anthropic_streams_what_it_answers(served: Served) -> None:
    whole = asked(served, ANTHROPIC, anthropic("a-whole"))
    told = asked(served, ANTHROPIC, anthropic("a-told", stream=True))
    names = [name for name, _ in told]
    assert names[:3] == ["message_start", "content_block_start", "ping"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert all(data["type"] == name for name, data in told)
    assert [{"type": "text", "text": heard(told)}] == whole["content"]
    assert told[-2][1]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert told[-2][1]["usage"] == whole["usage"]
    again = asked(served, ANTHROPIC, anthropic("a-whole"))
    assert again["usage"]["cache_read_input_tokens"] == whole["usage"]["cache_creation_input_tokens"] - 1


def test_generate_says_what_was_there(served: Served) -> None:
    body = {"prompt": "Robot: 1. find", "tokens": 5}
    first = asked(served, "/v1/agents/raw/generate", body)
    assert (first["kind"], first["origin"], first["kept"], first["finish"]) == ("miss", "cold", 0, "length")
    told = asked(served, "/v1/agents/raw/generate", body | {"stream": True})
    (name, end), done = told[-2:]
    assert name == "end" and done[1] == "[DONE]"
    assert end["origin"] == "hot" and end["kept"] == first["new"] - 1 and end["new"] == 1
    assert "".join(data["text"] for _, data in told[:-2]) == end["text"]
    longer = asked(served, "/v1/agents/raw/generate", {"prompt": body["prompt"] + end["text"] + "x", "tokens": 1})
    assert longer["kind"] == "extend"


@pytest.mark.parametrize("path", [OPENAI, ANTHROPIC])
def test_a_stop_ends_the_answer_and_is_no_part_of_it(served: Served, path: str) -> None:
    make = openai if path == OPENAI else anthropic
    whole = asked(served, path, make("stop-1"))
    text = whole["choices"][0]["message"]["content"] if path == OPENAI else whole["content"][0]["text"]
    stop = text[len(text) // 2 :][:2]
    field = "stop" if path == OPENAI else "stop_sequences"
    for more in ({}, {"stream": True}):
        cut = asked(served, path, make("stop-2", **{field: [stop, "never said"]}, **more))
        if more:
            assert heard(cut) == text[: text.index(stop)]
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
def test_what_would_change_the_answer_is_refused_by_name(served: Served, field: str, value: Any) -> None:
    error = asked(served, OPENAI, openai("no", **{field: value}), 400)["error"]
    assert field in error["message"]
    if field == "temperature":
        assert "temperature=0" in error["message"]


def test_what_changes_nothing_is_taken(served: Served) -> None:
    asked(served, OPENAI, openai("yes", temperature=0, n=1, tools=None, top_p=1.0, seed=4, max_tokens=1))


def test_only_text_is_understood(served: Served) -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    a, b = (asked(served, OPENAI, openai(f"parts-{n}", text)) for n, text in enumerate((parts, "one two")))
    assert a["choices"] == b["choices"]
    picture = [{"type": "image_url", "image_url": {"url": "http://x"}}]
    assert "content" in asked(served, OPENAI, openai("parts", picture), 422)["error"]["message"]
    picture = [{"type": "image", "source": {}}]
    assert asked(served, ANTHROPIC, anthropic("parts", picture), 422)["type"] == "error"


def test_what_is_no_model_or_too_much_is_refused(served: Served) -> None:
    assert "'tiny'" in asked(served, OPENAI, openai("m") | {"model": "gpt"}, 404)["error"]["message"]
    assert "max_tokens" in asked(served, OPENAI, openai("m", max_tokens=10**6), 400)["error"]["message"]
    assert "tokens" in asked(served, OPENAI, openai("m", "word " * 9000), 413)["error"]["message"]
    assert "characters" in asked(served, OPENAI, openai("m", "word " * 50000), 413)["error"]["message"]
    assert "stop" not in asked(served, OPENAI, openai("m", stop=["x"] * 9), 400)["error"]["type"]
    assert asked(served, OPENAI, openai("m"))["usage"]["prompt_tokens_details"]["cached_tokens"] == 0  # none was kept
    assert [model["id"] for model in served.http.get("/v1/models").json()["data"]] == ["tiny"]


@pytest.mark.parametrize("template", ["{{ 1 / 0 }}", "{{ raise_exception('roles must alternate') }}", 5])
def test_what_the_chat_template_does_not_take_is_a_bad_request(chat: PreTrainedTokenizerFast, template: Any) -> None:
    failing = PreTrainedTokenizerFast(tokenizer_object=chat.backend_tokenizer, chat_template=template)
    with pytest.raises(BadMessages, match="the model's chat template makes no prompt of these messages"):
        prompt_of(failing, [ChatMessage("user", "go")])
    assert BadMessages.status == 400


def test_whose_rows_is_said_by_header_then_body_then_token(served: Served) -> None:
    asked(served, OPENAI, openai("by-body"))
    named = asked(served, OPENAI, openai("someone"), **{"X-Agent-ID": "by-body"})
    assert named["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    body = openai("")
    del body["user"]
    assert "X-Agent-ID" in asked(served, OPENAI, body, 400)["error"]["message"]


@pytest.mark.parametrize("agent", ["../x", "a/b", "a\tb", "x" * 65, "CON", ".hidden", "persist_handover_a", "", "é"])
def test_ids_that_are_no_names_are_refused(served: Served, agent: str) -> None:
    for path, make in ((OPENAI, openai), (ANTHROPIC, anthropic)):
        asked(served, path, make(agent), 400)


def test_rows_are_warm_after_a_restart(serve: Serve, tmp_path: Path) -> None:
    body = {"prompt": "Robot: 1. find a mug, 2. done", "tokens": 3}
    for origin in ("cold", "warm"):
        with serve(folder=tmp_path) as (served, _):
            told = asked(served, "/v1/agents/robot/generate", body)
            assert (told["origin"], told["kept"] > 0) == (origin, origin == "warm")


def test_tokens_are_counted_up_to_the_stop(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many the model went on to say, which it has time for here: with one less it would not have got there."""
    path, body = "/v1/agents/counted/generate", {"prompt": "Robot: find a mug, 2.", "tokens": 60}
    text, feed = asked(served, path, body)["text"], Detokenizer.feed

    def slowly(words: Detokenizer, token: int) -> str:
        time.sleep(0.02)
        return feed(words, token)

    monkeypatch.setattr(Detokenizer, "feed", slowly)
    stop = {"stop": [text[len(text) // 3 :][:2]]}
    told = asked(served, path, body | stop)
    assert told["finish"] == "stop" and text.startswith(told["text"])
    count = told["generated"]
    assert asked(served, path, body | stop | {"tokens": count})["finish"] == "stop"
    less = asked(served, path, body | stop | {"tokens": count - 1})
    assert (less["finish"], less["generated"]) == ("length", count - 1)


def test_turns_and_agents_are_counted(serve: Serve) -> None:
    with serve() as (served, _):
        for agent in ("one", "two", "one"):
            asked(served, OPENAI, openai(agent, max_tokens=1))
        figures = served.http.get("/metrics").text
    assert 'keep_agent_chat_tokens_total{kind="generated"} 3.0' in figures
    assert "keep_agent_chat_agents 2.0" in figures


def test_those_who_spoke_long_ago_make_room_on_the_disk(serve: Serve, tmp_path: Path) -> None:
    body = {"prompt": "Robot: 1. find a mug, 2. done", "tokens": 1}
    with serve(folder=tmp_path, host_bytes=12_000) as (served, whole):
        for number in range(8):
            asked(served, f"/v1/agents/robot-{number}/generate", body)
        assert 0 < whole.conversations.memories.stats()["agents"] < 8
        origins = [asked(served, f"/v1/agents/robot-{number}/generate", body)["origin"] for number in (7, 0)]
    assert origins == ["hot", "warm"]


def test_nobody_is_refused_for_the_number_of_others(serve: Serve, engine: Engine) -> None:
    with serve() as (served, whole):
        memories = whole.conversations.memories
        for number in range(1100):
            with memories.turn(f"robot-{number}", "x") as prompt:
                engine.extend(prompt.cache, prompt.new, ChunkSchedule())
                memories.finish(prompt)
        asked(served, OPENAI, openai("late", max_tokens=1))
        assert memories.stats()["agents"] == 1101
