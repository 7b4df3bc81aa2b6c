"""Websocket of a planning agent, ``/v1/agents/{agent}/socket``: typed messages and their replies."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, suppress
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal

import anyio
from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from pydantic import BaseModel, Field, TypeAdapter, ValidationError, create_model

from keep_agent.errors import KeepError
from keep_agent.server.auth.access_rules import POLICY_VIOLATION, Caller
from keep_agent.server.auth.tokens import OPEN
from keep_agent.server.error_handlers import Refused, error_data, error_response, request_error, validation_message
from keep_agent.server.limits.concurrency_limiter import ConcurrencyLimiter
from keep_agent.server.limits.request_limits import RequestLimits, check_json
from keep_agent.server.planning.routes import AGENT, Finish, Observe, Plan, PlanningService, Report, apply
from keep_agent.server.settings import Settings

OVERHEAD = 64  # bytes added to the size of each queued message, so that the number of empty messages is bounded, too
REPLIES = {"observe": "observed", "report": "reported", "finish": "finished"}  # type of each reply
MODELS = {"observe": Observe, "plan": Plan, "report": Report, "finish": Finish}  # request model per message type
MESSAGES = [create_model(name, __base__=model, type=(Literal[name], ...)) for name, model in MODELS.items()]
MESSAGE: TypeAdapter[BaseModel] = TypeAdapter(Annotated[reduce(or_, MESSAGES), Field(discriminator="type")])


class Inbox:
    """Queue of received messages: up to ``most`` bytes, including `OVERHEAD` for each, or one larger message."""

    def __init__(self, most: int) -> None:
        self._most, self._bytes, self._is_closed = most, 0, False
        self._messages: deque[bytes] = deque()
        self._changed = asyncio.Condition()

    async def put(self, message: bytes) -> None:
        async with self._changed:
            size = len(message) + OVERHEAD
            await self._changed.wait_for(lambda: not self._messages or self._bytes + size <= self._most)
            self._messages.append(message)
            self._bytes += size
            self._changed.notify_all()

    async def close(self) -> None:
        async with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield messages until the inbox is closed and empty."""
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._messages or self._is_closed)
                if not self._messages:
                    return
                message = self._messages.popleft()
                self._bytes -= len(message) + OVERHEAD
                self._changed.notify_all()
            await asyncio.sleep(0)  # lets other tasks run between many fast messages
            yield message


def socket_router(planner: PlanningService, settings: Settings) -> APIRouter:
    router, limits, most = APIRouter(tags=["planning"]), settings.limits, settings.sockets
    agents = ConcurrencyLimiter(most, settings.agent_sockets, "websockets")
    tokens = ConcurrencyLimiter(most, max(1, most * 3 // 4), "websockets", "this token")

    async def answer(socket: WebSocket, agent: str, content: bytes) -> None:
        try:
            body = _parse(content, limits)
            async with planner.limiter.admit(agent):
                if isinstance(body, Plan):
                    async for name, data in planner.plan(agent, body):
                        await send(socket, {"type": name, **data}, limits.send_seconds)
                else:
                    await planner.run_with_agent(agent, lambda durable: apply(durable, body))
                    await send(socket, {"type": REPLIES[body.type]}, limits.send_seconds)
        except Exception as error:
            if request_error(error) is None:
                raise
            await send(socket, {"type": "error"} | error_data(socket.url.path, error), limits.send_seconds)

    @router.websocket(f"{AGENT}/socket")
    async def serve_socket(socket: WebSocket, agent: str, caller: Caller) -> None:
        async with AsyncExitStack() as resources:
            token = None if caller is OPEN else caller.name  # None: no limit per token
            try:
                await resources.enter_async_context(tokens.admit(token))
                await resources.enter_async_context(agents.admit(agent))
                async with planner.limiter.admit(agent):
                    await planner.run_with_agent(agent, lambda durable: None)  # loads the agent
            except KeepError as error:
                await socket.send_denial_response(error_response(socket.url.path, error))
                return
            await socket.accept()
            inbox = Inbox(limits.body_bytes)
            resources.callback(asyncio.create_task(_listen(socket, inbox)).cancel)
            with suppress(WebSocketDisconnect):
                async for content in inbox:
                    await answer(socket, agent, content)

    return router


async def send(socket: WebSocket, message: Mapping[str, Any], seconds: float) -> None:
    """Send a message within ``seconds``. Raises WebSocketDisconnect for a slower client, which would keep its slot."""
    try:
        with anyio.fail_after(seconds):
            await socket.send_text(json.dumps(message))
    except TimeoutError:
        raise WebSocketDisconnect(POLICY_VIOLATION) from None


def _parse(content: bytes, limits: RequestLimits) -> BaseModel:
    if len(content) > limits.body_bytes:
        raise Refused(f"a message of {len(content)} bytes is too long; use up to {limits.body_bytes}")
    check_json(content, limits.depth, limits.values)
    try:
        return MESSAGE.validate_json(content)
    except ValidationError as error:
        raise Refused(validation_message(error.errors(include_input=False, include_url=False))) from None


async def _listen(socket: WebSocket, inbox: Inbox) -> None:
    """Read messages while earlier ones are answered, since an unread message would delay the pings behind it."""
    try:
        while (message := await socket.receive())["type"] != "websocket.disconnect":
            await inbox.put(message.get("bytes") or (message.get("text") or "").encode("utf-8", "surrogatepass"))
    finally:
        await inbox.close()
