"""Request limits: large, slow, deep and invalid bodies, wrong values, and too many requests at once."""

from __future__ import annotations

import json
import resource
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from inspect import iscoroutinefunction
from types import SimpleNamespace
from typing import Annotated, Any, get_args, get_origin

import anyio
import httpx
import pytest
from fastapi import APIRouter, Body, Request, WebSocketDisconnect
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from envs.fact import Fact
from keep_agent.agent.validation import fields_of
from keep_agent.errors import ConfigError
from keep_agent.server.auth.access_rules import access_of
from keep_agent.server.chat.anthropic import Messages
from keep_agent.server.chat.generate import Generate
from keep_agent.server.chat.openai import Completion
from keep_agent.server.chat.request_fields import VendorModel
from keep_agent.server.error_handlers import Busy
from keep_agent.server.limits import concurrency_limiter as limiter
from keep_agent.server.limits.concurrency_limiter import ConcurrencyLimiter
from keep_agent.server.limits.request_limits import BadJson, RequestLimits, check_json
from keep_agent.server.limits.strict_models import StopAtFirstError, Strict
from keep_agent.server.planning.routes import FactRow, Observe, Plan
from keep_agent.server.planning.websocket import send
from keep_agent.server.settings import AgentLimits
from tests.keep_agent.server.serving import LiveServer, live_server, post, status
from tests.waiting import PATIENCE, FakeTime

LIMITS = RequestLimits(body_bytes=10_000, depth=8, large={"/large": 100_000})
HASTY = replace(LIMITS, body_seconds=0.5, send_seconds=0.5)  # seconds, for tests that can only end with a time-out
router = APIRouter()


@router.post("/json")
async def echo(body: Annotated[dict[str, Any], Body()]) -> dict[str, Any]:
    return body


@router.post("/large")
async def large(request: Request) -> int:
    return len(await request.body())


stream_ended = threading.Event()


class Endless(StreamingResponse):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            stream_ended.set()


@router.get("/endless", response_class=Response)
async def endless() -> Endless:
    async def parts() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 100_000

    return Endless(parts())


bounded = live_server(router, limits=LIMITS)
hasty = live_server(router, limits=HASTY)


def megabytes() -> Iterator[bytes]:
    for _ in range(1600):
        yield b"x" * (1 << 16)


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize("path", ["/json", "/large", "/nothing"])
def test_a_hundred_megabytes_are_refused_and_not_stored(bounded: LiveServer, path: str) -> None:
    before = peak()
    answer = bounded.http.post(path, content=megabytes())
    assert answer.status_code == 413, answer.text
    assert answer.headers["connection"] == "close"
    declared = bounded.http.post(path, content=megabytes(), headers={"Content-Length": str(1600 << 16)})
    assert declared.status_code == 413
    assert peak() - before < 30e6


def test_a_large_declared_length_is_refused_before_the_body(bounded: LiveServer) -> None:
    assert status(bounded.raw(post("/json", b"", Content_Length="20000"))) == 413
    answer = bounded.raw(post("/json", b"", Content_Length="99999999999999999999999", Expect="100-continue"))
    assert status(answer) in (400, 413) and b"100 Continue" not in answer


def test_a_path_may_have_its_own_limit(bounded: LiveServer) -> None:
    assert bounded.http.post("/large", content=b"x" * 100_000).json() == 100_000
    assert bounded.http.post("/large", content=b"x" * 100_001).status_code == 413
    assert bounded.http.post("/json", json={"a": "x" * 9_000}).status_code == 200
    assert bounded.http.post("/json", json={"a": "x" * 10_000}).status_code == 413


@pytest.mark.parametrize("path", ["/json", "/large"])
@pytest.mark.parametrize("sent", [b"", b'{"a":'])
def test_an_incomplete_body_times_out(hasty: LiveServer, path: str, sent: bytes) -> None:
    assert status(hasty.raw(post(path, sent, Content_Length="100"))) == 408


def test_a_slow_body_times_out(hasty: LiveServer) -> None:
    head = post("/json", b"", Content_Length="1000")
    with suppress(OSError):  # the connection may end while the client sends
        assert status(hasty.raw(head, *[b" "] * 20, pause=0.1)) == 408


def test_a_client_that_does_not_read_times_out(hasty: LiveServer) -> None:
    with hasty.socket() as connection:
        connection.sendall(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert stream_ended.wait(PATIENCE)
        assert hasty.http.get("/healthz").status_code == 200


def test_a_disconnection_within_a_body_changes_nothing(bounded: LiveServer) -> None:
    with bounded.socket() as connection:
        connection.sendall(post("/json", b"{", Content_Length="100"))
    assert bounded.http.post("/json", json={}).json() == {}


BAD = [
    b"[" * 9 + b"]" * 9, b'{"a":' * 9 + b"1" + b"}" * 9, b"[" * 9_000, b'{"a": "\xff"}', b'{"a": "\xed\xa0\x80"}',
    b'{"a": "\\ud800"}', b'{"a": "\\udc00\\ud800"}', b'{"a": "x\\ud83d\\u0041"}', b'{"a": "\\u0000"}',
    b'{"\\u0000": 1}', b'{"a": "\0"}', '{"a": 1}'.encode("utf-16"), '{"a": 1}'.encode("utf-32"), b'{"a": NaN}',
    b'{"a": -Infinity}', b'{"a": 1e999}', b'{"a": -1E+400}', b'{"a": ' + b"9" * 5000 + b"}",
    b'{"a": }', b"{", b"nul", b'"\\', b'"\\u', b'{"a": "\x01"}',
]  # fmt: skip


@pytest.mark.parametrize("body", BAD, ids=repr)
def test_invalid_json_is_refused(bounded: LiveServer, body: bytes) -> None:
    answer = bounded.http.post("/json", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422), answer.text
    assert set(answer.json()["error"]) == {"type", "message"}


GOOD = [
    {"a": "😀 \\ud800 \\u0000 [[[[[[[[[["}, {"a": [[[[[[1]]]]]]}, {"a": 1e99, "b": 2**63, "c": -1e-300}, {"a": "NaN"},
    {"a": '"{[', "b": "\\"}, {"é": "\U0010ffff"}, {"a": 0.1234567890123456789, "b": [[]] * 500},
]  # fmt: skip


@pytest.mark.parametrize("body", GOOD, ids=repr)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_valid_json_is_accepted(bounded: LiveServer, body: dict[str, Any], ascii_only: bool) -> None:
    content = json.dumps(body, ensure_ascii=ascii_only).encode()
    answer = bounded.http.post("/json", content=content, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()) == (200, body)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
)


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


@given(VALUES, st.booleans())
def test_the_scan_refuses_only_depth_and_nuls_of_valid_json(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    depth = depth_of(value)
    if "\\u0000" in text.replace("\\\\", ""):
        with pytest.raises(BadJson):
            check_json(text.encode(), 100, 1 << 20)
        return
    check_json(text.encode(), depth, 1 << 20)
    if depth:
        with pytest.raises(BadJson, match="deep"):
            check_json(text.encode(), depth - 1, 1 << 20)


@pytest.mark.parametrize("part", [b"[", b'"', b"\\", b'"\\', b"\\n", b"[]", b'"a",', b"1e1,", b"\\ud83d\\ude00"])
def test_the_scan_takes_linear_time(part: bytes) -> None:
    """A slower scan would exceed the test's time."""
    with suppress(BadJson):
        check_json(part * ((1 << 20) // len(part)), 100, 1 << 20)


@pytest.mark.parametrize("part", [b"{},", b"1,", b'"a":1,', b"[],"])
def test_a_body_with_too_many_values_is_refused(part: bytes) -> None:
    inside = (part * 250_000)[:-1]
    text = b"{" + inside + b"}" if part[:1] == b'"' else b'{"facts":[' + inside + b"]}"
    with pytest.raises(BadJson, match=r"holds \d+ values, more than 209715; send less at once"):
        check_json(text, 32, RequestLimits().values)


def test_commas_and_brackets_in_texts_do_not_count_as_values() -> None:
    check_json(json.dumps(["[,{" * 10_000]).encode(), 32, 10)


def test_all_things_of_an_agent_fit_into_one_observation() -> None:
    mugs = (Fact(f"mug_{number}", "object", "mug", "sink_1", states=("dirty",)) for number in range(5000))
    rows = [fields_of(mug) for mug in mugs]
    assert len(rows) == AgentLimits().things
    check_json(json.dumps({"facts": rows}).encode(), 32, RequestLimits().values)


def test_limits_of_zero_are_refused() -> None:
    for knobs in ({"body_bytes": 0}, {"requests": 0}, {"per_agent": 0}, {"large": {"/x": 0}}, {"body_seconds": -1}):
        with pytest.raises(ConfigError, match="above 0"):
            RequestLimits(**knobs)
    for numbers in ((0,), (1, 0)):
        with pytest.raises(ConfigError, match="admits no request"):
            ConcurrencyLimiter(*numbers)


def test_the_limiter_refuses_further_requests_with_a_time_to_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime()

    async def main() -> None:
        limiter = ConcurrencyLimiter(2)
        async with limiter.admit(), limiter.admit():
            with pytest.raises(Busy) as refusal:
                async with limiter.admit():
                    pass
            assert refusal.value.headers["Retry-After"] == "1"
            clock.sleep(2.2)
        assert limiter.active == 0
        async with limiter.admit(), limiter.admit():
            with pytest.raises(Busy) as refusal:
                async with limiter.admit():
                    pass
        assert refusal.value.headers["Retry-After"] == "2"
        with pytest.raises(ZeroDivisionError):
            async with limiter.admit():
                raise ZeroDivisionError
        assert limiter.active == 0

    monkeypatch.setattr(limiter, "time", SimpleNamespace(monotonic=clock))
    anyio.run(main)


def test_the_limiter_has_a_share_per_agent() -> None:
    async def main() -> None:
        limiter = ConcurrencyLimiter(5, most_per_owner=2)
        async with limiter.admit("a"), limiter.admit("a"), limiter.admit("b"):
            with pytest.raises(Busy, match="this agent at once: 2"):
                async with limiter.admit("a"):
                    pass
            async with limiter.admit(), limiter.admit("b"):
                pass
        assert limiter.active == 0
        async with limiter.admit("a"):
            pass

    anyio.run(main)


def test_a_validation_error_does_not_repeat_what_was_sent(bounded: LiveServer) -> None:
    answer = httpx.post(f"{bounded.url}/json", json=["my secret"], timeout=PATIENCE)
    assert answer.status_code == 422 and "secret" not in answer.text


def test_a_websocket_that_does_not_read_is_ended() -> None:
    class Stuck:
        async def send_text(self, text: str) -> None:
            await anyio.sleep_forever()

    with pytest.raises(WebSocketDisconnect):
        anyio.run(send, Stuck(), {"type": "decision"}, 0.01)


def test_access_checks_need_no_thread() -> None:
    """Slow requests may hold all threads, so the check is a coroutine."""
    assert iscoroutinefunction(access_of)


MANY = 30_000


def models(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for model in base.__subclasses__():
        yield model
        yield from models(model)


def lists_without_end(annotation: Any, metadata: tuple[Any, ...] = ()) -> Iterator[Any]:
    """Yield the lists in an annotation that do not end at their first wrong item."""
    if get_origin(annotation) is list and not any(isinstance(item, StopAtFirstError) for item in metadata):
        yield annotation
    for part in get_args(annotation):
        if not isinstance(part, StopAtFirstError):
            yield from lists_without_end(part, getattr(annotation, "__metadata__", ()))


def test_every_list_of_a_request_ends_at_its_first_wrong_item() -> None:
    request_models = [*models(Strict), *models(VendorModel)]
    assert {Observe, Plan, Generate, Completion, Messages} <= set(request_models)
    for model in request_models:
        for name, field in model.model_fields.items():
            assert not [*lists_without_end(field.annotation, tuple(field.metadata))], f"{model.__name__}.{name}"


THING = {"id": "mug_1", "category": "object", "type": "mug"}
TALK = {"model": "m", "max_tokens": 1}


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (Observe, {"facts": [1] * MANY}), (Observe, {"facts": [THING | {"states": [1] * MANY}]}),
        (Observe, {"facts": [THING | {f"k{number}": 0 for number in range(MANY)}]}),
        (Plan, {"instruction": "x", "skills": ["a"]} | {f"k{number}": 0 for number in range(MANY)}),
        (Plan, {"instruction": "x", "skills": [None] * MANY}), (Generate, {"prompt": "x", "stop": [1] * MANY}),
        (Completion, TALK | {"messages": [{"role": "user", "content": [1] * MANY}]}),
        (Completion, TALK | {"messages": [{"role": "user", "content": "x"}], "stop": [1] * MANY}),
        (Messages, TALK | {"messages": [{"role": "user", "content": [{}] * MANY}]}),
        (Messages, TALK | {"messages": [{"role": "user", "content": "x"}], "system": [{}] * MANY}),
    ],
)  # fmt: skip
def test_many_wrong_values_give_one_error(model: type[BaseModel], body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(body)
    assert caught.value.error_count() <= 4  # a union has an error for each of its types


def test_an_unknown_field_is_named_with_the_closest_known_one() -> None:
    with pytest.raises(ValidationError, match="is no field 'plase'; the known fields are id, .*did you mean 'place'"):
        FactRow.model_validate(THING | {"plase": "sink_1"})
