"""Answers that come bit by bit (server-sent events), and what happens when nobody waits for them any more."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from keep_agent.server.chat.conversations import Generation
from keep_agent.server.error_handlers import event_of, expected, kind_of

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # proxies shall not hold events back
QUIET = 15.0  # seconds without a word, after which a sign of life is sent
DONE = b"data: [DONE]\n\n"
ALIVE = b": still there\n\n"
log = logging.getLogger(__name__)


def event(data: Any, name: str | None = None) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def failed(body: Mapping[str, Any]) -> bytes:
    """An error as an event of that name, for formats that have names."""
    return event(body, "error")


class Events(StreamingResponse):
    """``generation`` is cancelled when its client has gone, or has all: whatever comes first."""

    media_type = "text/event-stream"

    def __init__(self, content: AsyncIterator[bytes], generation: Generation) -> None:
        super().__init__(content, headers=HEADERS)
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._generation.cancel()


@asynccontextmanager
async def attended(request: Request, generation: Generation) -> AsyncIterator[None]:
    """Cancel ``generation`` if its client goes away, or anything goes wrong, while the block waits for it."""
    watch = asyncio.create_task(_until_gone(request, generation))
    try:
        yield
    except BaseException:
        generation.cancel()
        raise
    finally:
        watch.cancel()
        await asyncio.wait([watch])


async def _until_gone(request: Request, generation: Generation) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    generation.cancel()


async def reply(
    request: Request, generation: Generation, events: AsyncIterator[bytes] | None, answer: Callable[[str], BaseModel]
) -> Response:
    """Answer with ``events`` where there are some, else with the whole text. Raises what went wrong.

    The prompt is accepted before the first event, so that what is wrong with it has a status of its own.
    """
    async with attended(request, generation):
        await generation.begin()
        if events is None:
            text = "".join([piece async for piece in generation.pieces()])
            return Response(answer(text).model_dump_json(), media_type="application/json")
    return Events(events, generation)


async def pieces(generation: Generation) -> AsyncIterator[str | None]:
    """Pieces of text; None after a while without one."""
    following = aiter(generation.pieces())
    waiting: asyncio.Future[str] = asyncio.ensure_future(anext(following))
    try:
        while True:
            done, _ = await asyncio.wait([waiting], timeout=QUIET)
            if not done:
                yield None
                continue
            try:
                yield waiting.result()
            except StopAsyncIteration:
                return
            waiting = asyncio.ensure_future(anext(following))
    finally:
        waiting.cancel()


async def telling(path: str, events: AsyncIterator[bytes], wrap: Callable[[Mapping[str, Any]], bytes] = event) -> (
    AsyncIterator[bytes]
):  # fmt: skip
    """``events``; what goes wrong on the way becomes the last of them, with the status that the answer would have."""
    try:
        async for item in events:
            yield item
    except Exception as error:
        if (refusal := expected(error)) is None:
            log.exception("%s", path)
        else:
            log.warning("%s: %s: %s", path, kind_of(refusal), refusal)
        yield wrap(event_of(path, error))
