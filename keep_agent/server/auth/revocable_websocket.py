"""Websockets that end when their token becomes void."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keep_agent.server.error_handlers import Refused

POLICY = 1008  # reason of RFC 6455 to end a connection


class Revocable:
    """ASGI application for one websocket: ``app``, until ``decide`` raises Refused at a message, in or out."""

    def __init__(self, app: ASGIApp, decide: Callable[[], object]) -> None:
        self._app, self._decide = app, decide

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ended = False

        async def is_over(message: Message) -> bool:
            nonlocal ended
            if ended or message["type"] not in ("websocket.receive", "websocket.send"):
                return ended
            try:
                self._decide()
            except Refused:
                ended = True
                await send({"type": "websocket.close", "code": POLICY, "reason": "the token is void"})
            return ended

        async def receiving() -> Message:
            message = await receive()
            return {"type": "websocket.disconnect", "code": POLICY} if await is_over(message) else message

        async def sending(message: Message) -> None:
            if await is_over(message):
                raise OSError("the token is void")  # as a connection that is closed: what was heard before goes no way
            await send(message)

        await self._app(scope, receiving, sending)
