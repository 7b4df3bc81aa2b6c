"""Server-sent events: streamed answers, which are cancelled when their client disconnects."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from keep_agent.server.chat.conversations import Generation
from keep_agent.server.error_handlers import error_data, request_error

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # proxies must not buffer events
SSE = {200: {"content": {"text/event-stream": {}}, "description": "The answer, or its parts if ``stream`` is true"}}
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": still there\n\n"
log = logging.getLogger(__name__)


def event(data: Any, name: str | None = None) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


error_event = partial(event, name="error")  # encodes an error for APIs whose events have names


class EventStream(StreamingResponse):
    """Streamed answer. ``generation`` is cancelled when the stream ends or the client disconnects."""

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
async def _cancel_on_disconnect(request: Request, generation: Generation) -> AsyncIterator[None]:
    """Cancel ``generation`` if its client disconnects or an error is raised during the block."""

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        generation.cancel()

    task = asyncio.create_task(watch())
    try:
        yield
    except BaseException:
        generation.cancel()
        raise
    finally:
        task.cancel()
        await asyncio.wait([task])


async def reply(
    request: Request, path: str, generation: Generation, events: AsyncIterator[bytes] | None,
    answer: Callable[[str], BaseModel], encode_error: Callable[[Mapping[str, Any]], bytes] = event,
) -> Response:  # fmt: skip
    """Respond with streamed ``events``; if None, with ``answer(text)``. Errors before streaming set the HTTP status."""
    async with _cancel_on_disconnect(request, generation):
        await generation.begin()
        if events is None:
            text = "".join([piece or "" async for piece in generation.pieces()])
            return Response(answer(text).model_dump_json(), media_type="application/json")
    return EventStream(with_error_event(path, events, encode_error), generation)


async def with_error_event(
    path: str, events: AsyncIterator[bytes], encode: Callable[[Mapping[str, Any]], bytes] = event
) -> AsyncIterator[bytes]:
    """Yield ``events``. An error becomes the last event, which includes the error's HTTP status."""
    try:
        async for item in events:
            yield item
    except Exception as error:
        if (refusal := request_error(error)) is None:
            log.exception("%s", path)
        else:
            log.warning("%s: %s: %s", path, type(refusal).__name__, refusal)
        yield encode(error_data(path, error))
