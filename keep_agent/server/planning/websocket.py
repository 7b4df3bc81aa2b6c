"""``/v1/agents/{agent}/socket``: one connection for a robot's whole day; each message is answered by type."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Annotated, Any, Literal

import anyio
from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from keep_agent.errors import KeepError
from keep_agent.server.auth.access_rules import AGENTS, Caller
from keep_agent.server.auth.revocable_websocket import POLICY
from keep_agent.server.auth.tokens import OPEN, Access
from keep_agent.server.error_handlers import Refused, answer_to, described, event_of, expected
from keep_agent.server.limits.concurrency_limiter import ConcurrencyLimiter
from keep_agent.server.limits.json_scan import check_json
from keep_agent.server.limits.websocket_inbox import Inbox
from keep_agent.server.planning.routes import Planner, tell
from keep_agent.server.planning.schemas import Finish, Observe, Plan, Report
from keep_agent.server.settings import Settings


class ObserveMessage(Observe):
    type: Literal["observe"]


class PlanMessage(Plan):
    type: Literal["plan"]


class ReportMessage(Report):
    type: Literal["report"]


class FinishMessage(Finish):
    type: Literal["finish"]


Message = Annotated[ObserveMessage | PlanMessage | ReportMessage | FinishMessage, Field(discriminator="type")]
REPLIES = {"observe": "observed", "report": "reported", "finish": "finished"}  # how each is answered
MESSAGE: TypeAdapter[BaseModel] = TypeAdapter(Message)


class SocketRoutes:
    def __init__(self, planner: Planner, settings: Settings) -> None:
        most = settings.sockets
        self._planner, self._limits = planner, settings.limits
        self._agents = ConcurrencyLimiter(most, settings.agent_sockets, "websockets")
        self._tokens = ConcurrencyLimiter(most, max(1, most * 3 // 4), "websockets", "this token")
        self.router = APIRouter(tags=["planning"])
        self.router.add_api_websocket_route(f"{AGENTS}/{{agent}}/socket", self.talk)

    async def talk(self, socket: WebSocket, agent: str, caller: Caller) -> None:
        async with AsyncExitStack() as resources:
            try:
                await self._enter(agent, caller, resources)
            except KeepError as error:
                await socket.send_denial_response(answer_to(socket.url.path, error))
                return
            await socket.accept()
            inbox = Inbox(self._limits.body_bytes)
            listener = asyncio.create_task(self._listen(socket, inbox))
            resources.callback(listener.cancel)
            with suppress(WebSocketDisconnect):
                async for content in inbox:
                    await self._answer(socket, agent, content)

    async def _enter(self, agent: str, caller: Access, resources: AsyncExitStack) -> None:
        """Take a share of the websockets, and wake the agent. Raises KeepError."""
        token = None if caller is OPEN else caller.name  # without tokens there is nobody to share with
        await resources.enter_async_context(self._tokens.entered(token))
        await resources.enter_async_context(self._agents.entered(agent))
        async with self._planner.limiter.entered(agent):
            await self._planner.on(agent, lambda one: None)

    async def _listen(self, socket: WebSocket, inbox: Inbox) -> None:
        """Take what comes while other messages are answered: behind an unread one no sign of life would be seen."""
        try:
            while (message := await socket.receive())["type"] != "websocket.disconnect":
                await inbox.put(message.get("bytes") or (message.get("text") or "").encode("utf-8", "surrogatepass"))
        finally:
            await inbox.end()

    async def _answer(self, socket: WebSocket, agent: str, content: bytes) -> None:
        try:
            body = self._read(content)
            async with self._planner.limiter.entered(agent):
                async for name, data in self._events(agent, body):
                    await self._send(socket, {"type": name, **data})
        except Exception as error:
            if expected(error) is None:
                raise
            await self._send(socket, {"type": "error"} | event_of(socket.url.path, error))

    async def _send(self, socket: WebSocket, message: Mapping[str, Any]) -> None:
        """Raises WebSocketDisconnect where the peer does not take it in time: it holds a share of what all need."""
        try:
            with anyio.fail_after(self._limits.send_seconds):
                await socket.send_text(json.dumps(message))
        except TimeoutError:
            raise WebSocketDisconnect(POLICY) from None

    def _read(self, content: bytes) -> BaseModel:
        if len(content) > self._limits.body_bytes:
            raise Refused(f"a message of {len(content)} bytes is too long; use up to {self._limits.body_bytes}")
        check_json(content, self._limits.depth, self._limits.values)
        try:
            return MESSAGE.validate_json(content)
        except ValidationError as error:
            raise Refused(described(error.errors(include_input=False, include_url=False))) from None

    async def _events(self, agent: str, body: BaseModel) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        if isinstance(body, PlanMessage):
            async for event in self._planner.plan(agent, body):
                yield event
        else:
            await self._planner.on(agent, lambda one: tell(one, body))
            yield REPLIES[body.type], {}
