"""``/v1/agents``: create, observe, plan, report, and take a memory out or put one in."""

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
from keep_agent.server.chat.openai import SSE
from keep_agent.server.chat.server_sent_events import HEADERS, event, failed, telling
from keep_agent.server.error_handlers import NotFound
from keep_agent.server.limits.concurrency_limiter import ConcurrencyLimiter
from keep_agent.server.metrics import Metrics
from keep_agent.server.planning.registry import Registry
from keep_agent.server.planning.schemas import About, Create, Decided, Finish, Listed, Observe, Plan, Report, decided

MEMORY = "application/octet-stream"
BYTES = {"content": {MEMORY: {"schema": {"type": "string", "format": "binary"}}}}
TAKEN: dict[str, Any] = {"responses": {200: BYTES}, "response_class": Response}
GIVEN: dict[str, Any] = {"openapi_extra": {"requestBody": {"required": True, **BYTES}}}
T = TypeVar("T")


def tell(agent: DurableAgent, body: Observe | Report | Finish) -> None:
    """What is asked for, done."""
    match body:
        case Observe():
            agent.observe([fact.model_dump() for fact in body.facts])
        case Report():
            agent.report(Outcome(body.ok, body.message), body.number)
        case Finish():
            agent.finish(body.success)


class Planner:
    """The agents as the event loop sees them: every call runs in a thread, of a pool without bounds.

    The limiter bounds how many there are at once.
    """

    def __init__(self, registry: Registry, limiter: ConcurrencyLimiter, metrics: Metrics) -> None:
        self.registry, self.limiter = registry, limiter
        self._metrics = metrics
        self._threads = anyio.CapacityLimiter(math.inf)
        metrics.watch("agents_awake", "Planning agents in memory", lambda: registry.awake)

    async def thread(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, limiter=self._threads)

    async def on(self, name: str, work: Callable[[DurableAgent], T]) -> T:
        """``work`` with an agent that is awake."""

        def run() -> T:
            with self.registry.use(name) as agent:
                return work(agent)

        return await self.thread(run)

    async def plan(self, name: str, body: Plan) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """``ready`` with what the prompt cost, then ``decision``. Goes on to its end if nobody listens any more."""
        loop, heard = asyncio.get_running_loop(), asyncio.Queue[tuple[str, dict[str, Any]]]()

        def ready(cost: dict[str, Any]) -> None:
            loop.call_soon_threadsafe(heard.put_nowait, ("ready", cost))

        work = self.on(name, lambda agent: agent.plan(body.instruction, body.skills, ready, body.after))
        task = asyncio.ensure_future(work)

        def ended(done: asyncio.Task[Decision]) -> None:
            if not done.cancelled():
                done.exception()  # retrieved, so that asyncio logs nothing where nobody waits any more
            heard.put_nowait(("", {}))

        task.add_done_callback(ended)
        while (told := await heard.get())[0]:
            yield told
        decision = await task
        self._metrics.planned(decision.trace)
        yield "decision", decided(decision, body.trace)


class PlanningRoutes:
    """:param forget: deletes what else is known of an agent, and says whether there was anything"""

    def __init__(self, planner: Planner, forget: Callable[[str], Awaitable[bool]]) -> None:
        self._planner, self._forget = planner, forget
        self.router = APIRouter(tags=["planning"], dependencies=[Depends(planner.limiter.admitted)])
        one = f"{AGENTS}/{{agent}}"
        for path, method, route, about, more in (
            (AGENTS, "POST", self.create, "Create an agent", {"status_code": 201, "response_model": About}),
            (AGENTS, "GET", self.names, "List the agents of the token", {"response_model": Listed}),
            (one, "GET", self.about, "Look at an agent", {"response_model": About}),
            (one, "DELETE", self.delete, "Forget an agent", {"status_code": 204, "response_class": Response}),
            (f"{one}/observe", "POST", self.observe, "Tell what is new or different", {"response_model": About}),
            (f"{one}/plan", "POST", self.plan, "Choose the next skill", {"response_model": Decided, "responses": SSE}),
            (f"{one}/report", "POST", self.report, "Tell what became of a decision", {"response_model": About}),
            (f"{one}/finish", "POST", self.finish, "End the task", {"response_model": About}),
            (f"{one}/memory", "GET", self.save, "Take the memory out", TAKEN),
            (f"{one}/memory", "PUT", self.restore, "Put a memory in", {"response_model": About, **GIVEN}),
        ):  # fmt: skip
            self.router.add_api_route(path, route, methods=[method], summary=about, **more)

    async def create(self, body: Create, caller: Caller) -> About:
        caller.require(body.id)
        await self._planner.thread(lambda: self._planner.registry.create(body.id, reserved=not caller.all))
        return About(id=body.id, segments=0, decisions=0)

    async def names(self, caller: Caller) -> Listed:
        return Listed(agents=await self._planner.thread(lambda: self._planner.registry.names(caller.agents)))

    async def about(self, agent: str) -> About:
        return await self._told(agent, lambda one: None)

    async def delete(self, agent: str) -> Response:
        talked = await self._forget(agent)
        try:
            await self._planner.thread(lambda: self._planner.registry.delete(agent))
        except NotFound:
            if not talked:
                raise
        return Response(status_code=204)

    async def observe(self, agent: str, body: Observe) -> About:
        return await self._told(agent, lambda one: tell(one, body))

    async def plan(self, request: Request, agent: str, body: Plan) -> Response | Decided:
        events = self._planner.plan(agent, body)
        first = await anext(events)  # whatever is wrong with the request is known by then
        if body.stream:
            content = telling(request.url.path, _events(first, events), failed)
            return StreamingResponse(content, media_type="text/event-stream", headers=HEADERS)
        found = [first, *[one async for one in events]]
        return Decided(**found[-1][1])

    async def report(self, agent: str, body: Report) -> About:
        return await self._told(agent, lambda one: tell(one, body))

    async def finish(self, agent: str, body: Finish) -> About:
        return await self._told(agent, lambda one: tell(one, body))

    async def save(self, agent: str) -> Response:
        content = await self._planner.on(agent, lambda one: packed(one.dump()))
        return Response(content, media_type=MEMORY)

    async def restore(self, request: Request, agent: str) -> About:
        body = await request.body()

        registry = self._planner.registry

        def replace() -> None:
            registry.replace(agent, unpacked(body, "the body", registry.limits.memory_values))

        await self._planner.thread(replace)
        return await self.about(agent)

    async def _told(self, agent: str, work: Callable[[DurableAgent], None]) -> About:
        def run(one: DurableAgent) -> About:
            work(one)
            return About(id=agent, segments=one.agent.segments, decisions=one.agent.number)

        return await self._planner.on(agent, run)


async def _events(
    first: tuple[str, dict[str, Any]], rest: AsyncIterator[tuple[str, dict[str, Any]]]
) -> AsyncIterator[bytes]:
    yield event(first[1], first[0])
    async for name, data in rest:
        yield event(data, name)
