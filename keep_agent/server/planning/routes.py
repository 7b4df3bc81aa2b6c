"""Routes of planning agents below ``/v1/agents``."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import anyio
from fastapi import APIRouter, Depends, Request
from starlette.responses import Response, StreamingResponse

from envs.outcome import Outcome
from keep_agent.agent.durable import DurableAgent
from keep_agent.agent.memory_file import packed, unpacked
from keep_agent.agent.types import Decision
from keep_agent.server.auth.access_rules import AGENTS, Caller
from keep_agent.server.chat.server_sent_events import HEADERS, SSE, error_event, event, with_error_event
from keep_agent.server.error_handlers import NotFound
from keep_agent.server.limits.concurrency_limiter import ConcurrencyLimiter
from keep_agent.server.metrics import Metrics
from keep_agent.server.planning.registry import Registry
from keep_agent.server.planning.schemas import (
    About,
    AgentList,
    Create,
    Decided,
    Finish,
    Observe,
    Plan,
    Report,
    decision_json,
)

MEMORY = "application/octet-stream"
BYTES = {"content": {MEMORY: {"schema": {"type": "string", "format": "binary"}}}}
DOWNLOAD: dict[str, Any] = {"responses": {200: BYTES}, "response_class": Response}
UPLOAD: dict[str, Any] = {"openapi_extra": {"requestBody": {"required": True, **BYTES}}}
Event = tuple[str, dict[str, Any]]
T = TypeVar("T")


def apply(agent: DurableAgent, body: Observe | Report | Finish) -> None:
    """Call the agent's method for a request."""
    match body:
        case Observe():
            agent.observe([fact.model_dump() for fact in body.facts])
        case Report():
            agent.report(Outcome(body.ok, body.message), body.number)
        case Finish():
            agent.finish(body.success)


class Planner:
    """Async access to the agents: every call runs in a thread. The limiter bounds the number of threads."""

    def __init__(self, registry: Registry, limiter: ConcurrencyLimiter, metrics: Metrics) -> None:
        self.registry, self.limiter = registry, limiter
        self._metrics = metrics
        self._threads = anyio.CapacityLimiter(math.inf)
        metrics.watch("agents_awake", "Planning agents in memory", lambda: registry.awake)

    async def thread(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, limiter=self._threads)

    async def on(self, name: str, work: Callable[[DurableAgent], T]) -> T:
        """Run ``work`` with an agent, woken up if necessary."""

        def run() -> T:
            with self.registry.use(name) as agent:
                return work(agent)

        return await self.thread(run)

    async def plan(self, name: str, body: Plan) -> AsyncIterator[Event]:
        """Yield ``ready`` with the prompt's cost, then ``decision``. A plan completes even if the client leaves."""
        loop, events = asyncio.get_running_loop(), asyncio.Queue[Event]()

        def ready(cost: dict[str, Any]) -> None:
            loop.call_soon_threadsafe(events.put_nowait, ("ready", cost))

        work = self.on(name, lambda agent: agent.plan(body.instruction, body.skills, ready, body.after))
        task = asyncio.ensure_future(work)

        def done(task: asyncio.Task[Decision]) -> None:
            if not task.cancelled():
                task.exception()  # marks it as retrieved, else asyncio logs an error that no client waits for
            events.put_nowait(("", {}))

        task.add_done_callback(done)
        while (item := await events.get())[0]:
            yield item
        decision = await task
        self._metrics.planned(decision.trace)
        yield "decision", decision_json(decision, body.trace)


class PlanningRoutes:
    """Routes of planning agents.

    :param forget: deletes an agent's conversations; returns whether there were any
    """

    def __init__(self, planner: Planner, forget: Callable[[str], Awaitable[bool]]) -> None:
        self._planner, self._forget = planner, forget
        self.router = APIRouter(tags=["planning"], dependencies=[Depends(planner.limiter.admitted)])
        root, about = f"{AGENTS}/{{agent}}", {"response_model": About}
        for path, method, route, summary, more in (
            (AGENTS, "POST", self.create, "Create an agent", {"status_code": 201, **about}),
            (AGENTS, "GET", self.names, "List the agents of the token", {"response_model": AgentList}),
            (root, "GET", self.about, "Look at an agent", about),
            (root, "DELETE", self.delete, "Forget an agent", {"status_code": 204, "response_class": Response}),
            (f"{root}/observe", "POST", self.observe, "Send new and changed facts", about),
            (f"{root}/plan", "POST", self.plan, "Choose the next skill", {"response_model": Decided, "responses": SSE}),
            (f"{root}/report", "POST", self.report, "Report the outcome of a decision", about),
            (f"{root}/finish", "POST", self.finish, "End the task", about),
            (f"{root}/memory", "GET", self.save, "Download the memory", DOWNLOAD),
            (f"{root}/memory", "PUT", self.restore, "Upload a memory", {**about, **UPLOAD}),
        ):  # fmt: skip
            self.router.add_api_route(path, route, methods=[method], summary=summary, **more)

    async def create(self, body: Create, caller: Caller) -> About:
        caller.require(body.id)
        await self._planner.thread(lambda: self._planner.registry.create(body.id, reserved=not caller.all))
        return About(id=body.id, segments=0, decisions=0)

    async def names(self, caller: Caller) -> AgentList:
        return AgentList(agents=await self._planner.thread(lambda: self._planner.registry.names(caller.agents)))

    async def about(self, agent: str) -> About:
        return await self._apply(agent, None)

    async def delete(self, agent: str) -> Response:
        had_conversations = await self._forget(agent)
        try:
            await self._planner.thread(lambda: self._planner.registry.delete(agent))
        except NotFound:
            if not had_conversations:
                raise
        return Response(status_code=204)

    async def observe(self, agent: str, body: Observe) -> About:
        return await self._apply(agent, body)

    async def report(self, agent: str, body: Report) -> About:
        return await self._apply(agent, body)

    async def finish(self, agent: str, body: Finish) -> About:
        return await self._apply(agent, body)

    async def plan(self, request: Request, agent: str, body: Plan) -> Response | Decided:
        events = self._planner.plan(agent, body)
        first = await anext(events)  # raises the errors of the request, so that they have a status of their own
        if body.stream:
            content = with_error_event(request.url.path, _encode(first, events), error_event)
            return StreamingResponse(content, media_type="text/event-stream", headers=HEADERS)
        *_, (_, decision) = [first, *[item async for item in events]]
        return Decided(**decision)

    async def save(self, agent: str) -> Response:
        content = await self._planner.on(agent, lambda durable: packed(durable.dump()))
        return Response(content, media_type=MEMORY)

    async def restore(self, request: Request, agent: str) -> About:
        body, registry = await request.body(), self._planner.registry

        def replace() -> None:
            registry.replace(agent, unpacked(body, "the body", registry.limits.memory_values))

        await self._planner.thread(replace)
        return await self.about(agent)

    async def _apply(self, agent: str, body: Observe | Report | Finish | None) -> About:
        def run(durable: DurableAgent) -> About:
            if body is not None:
                apply(durable, body)
            return About(id=agent, segments=durable.agent.segments, decisions=durable.agent.number)

        return await self._planner.on(agent, run)


async def _encode(first: Event, rest: AsyncIterator[Event]) -> AsyncIterator[bytes]:
    yield event(first[1], first[0])
    async for name, data in rest:
        yield event(data, name)
