"""Routes of planning agents below ``/v1/agents``, with the models of their requests and answers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal, TypeVar

import anyio
from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr
from starlette.responses import Response, StreamingResponse

from envs.outcome import Outcome
from keep_agent.agent.durable import DurableAgent
from keep_agent.agent.memory_file import pack_state, unpack_state
from keep_agent.agent.types import Decision
from keep_agent.server.auth.access_rules import AGENTS, Caller
from keep_agent.server.chat.server_sent_events import HEADERS, SSE, error_event, event, with_error_event
from keep_agent.server.error_handlers import NotFound
from keep_agent.server.limits.concurrency_limiter import ConcurrencyLimiter
from keep_agent.server.limits.strict_models import Items, Strict
from keep_agent.server.metrics import Metrics
from keep_agent.server.planning.registry import AgentRegistry

AGENT = f"{AGENTS}/{{agent}}"
MEMORY = "application/octet-stream"
BYTES = {"content": {MEMORY: {"schema": {"type": "string", "format": "binary"}}}}
ROBOT = {"id": "agent", "category": "agent", "type": "agent", "place": "counter_1"}
MUG = {"id": "mug_1", "category": "object", "type": "mug", "place": "cabinet_1", "states": ["dirty"]}
CABINET = {"id": "cabinet_1", "category": "receptacle", "type": "cabinet", "states": ["closed"]}
SKILLS = ["go to cabinet 1", "open cabinet 1", "done"]
DETAILS = {"none": (), "summary": ("queued_ms", "timings", "counts", "ahead")}  # trace keys in a response, by detail
Detail = Literal["none", "summary", "full"]


def _example(**values: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [values]})


class Create(Strict):
    model_config = _example(id="kitchen")
    id: StrictStr = Field(description="1 to 64 characters of A-Z, a-z, 0-9, '.', '_' and '-'", max_length=64)


class FactRow(Strict):
    """Fact about an object, a receptacle or the agent; omitted fields are unknown or false."""

    model_config = _example(**MUG)
    id: StrictStr = Field(description="Name of the object, receptacle or agent: its type and a number")
    category: Literal["object", "receptacle", "agent"]
    type: StrictStr
    place: StrictStr | None = Field(None, description="Id of the receptacle or room; 'agent' for a held object")
    holds: StrictStr | None = Field(None, description="Id of the object that the agent holds")
    states: Items[StrictStr] = Field([], description="Words such as open, hot, clean, unseen")
    gone: StrictBool = Field(False, description="Whether the object or receptacle no longer exists")
    sees: Items[StrictStr] = Field([], description="Ids of the objects and receptacles that the agent sees")


class Observe(Strict):
    model_config = _example(facts=[ROBOT, CABINET, MUG])
    facts: Items[FactRow]


class Plan(Strict):
    model_config = _example(instruction="put the mug on the table", skills=SKILLS)
    instruction: StrictStr
    skills: Items[StrictStr] = Field(description="The skills that are possible now")
    after: StrictInt | None = Field(
        None, description="Number of the last decision that you know, 0 before the first. A repeated request with the "
        "same number returns the same decision",
    )  # fmt: skip
    trace: Detail = Field("summary", description="Detail of the prompt's trace in the response")
    stream: StrictBool = Field(False, description="Answer with server-sent events: ready, then decision")


class Report(Strict):
    model_config = _example(ok=False, message="the cabinet is locked", number=3)
    ok: StrictBool
    message: StrictStr = Field("", description="The reason why the skill failed")
    number: StrictInt | None = Field(None, description="Number of the decision; with it a report may be repeated")


class Finish(Strict):
    model_config = _example(success=True)
    success: StrictBool


class About(BaseModel):
    id: str
    segments: int
    decisions: int


class AgentList(BaseModel):
    agents: list[str]


class Decided(BaseModel):
    skill: str
    scores: list[tuple[str, float]]
    number: int
    trace: dict[str, Any]
    warnings: list[str] = Field([], description="Facts that the plan lacked, such as one about the agent itself")


Event = tuple[str, dict[str, Any]]
T = TypeVar("T")


def apply(agent: DurableAgent, body: Observe | Report | Finish) -> None:
    match body:
        case Observe():
            agent.observe([fact.model_dump() for fact in body.facts])
        case Report():
            agent.report(Outcome(body.ok, body.message), body.number)
        case Finish():
            agent.finish(body.success)


class PlanningService:
    """Async access to the agents: every call runs in a thread; ``limiter`` bounds the requests."""

    def __init__(self, registry: AgentRegistry, limiter: ConcurrencyLimiter, metrics: Metrics) -> None:
        self.registry, self.limiter, self._metrics = registry, limiter, metrics
        self._threads = anyio.CapacityLimiter(math.inf)
        metrics.add_gauge("agents_awake", "Planning agents in memory", lambda: registry.loaded_count)

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, limiter=self._threads)

    async def run_with_agent(self, name: str, work: Callable[[DurableAgent], T]) -> T:
        """Run ``work`` with an agent, which is loaded if necessary."""

        def run() -> T:
            with self.registry.use(name) as agent:
                return work(agent)

        return await self.run_in_thread(run)

    async def plan(self, name: str, body: Plan) -> AsyncIterator[Event]:
        """Yield ``ready`` with the prompt's cost, then ``decision``. A plan completes even after its client leaves."""
        loop, events = asyncio.get_running_loop(), asyncio.Queue[Event]()

        def ready(cost: dict[str, Any]) -> None:
            loop.call_soon_threadsafe(events.put_nowait, ("ready", cost))

        def done(task: asyncio.Task[Decision]) -> None:
            if not task.cancelled():
                task.exception()  # marks the error as retrieved, else asyncio logs it
            events.put_nowait(("", {}))

        work = self.run_with_agent(name, lambda agent: agent.plan(body.instruction, body.skills, ready, body.after))
        task = asyncio.ensure_future(work)
        task.add_done_callback(done)
        is_new = False  # a repeated decision has no event ``ready``
        while (item := await events.get())[0]:
            is_new = True
            yield item
        decision = await task
        if is_new:
            self._metrics.record_plan(decision.trace)
        scores = [(skill, round(score, 4)) for skill, score in decision.scores]
        trace = {key: decision.trace[key] for key in DETAILS.get(body.trace, decision.trace) if key in decision.trace}
        yield "decision", {
            "skill": decision.skill, "scores": scores, "number": decision.number, "trace": trace,
            "warnings": list(decision.warnings),
        }  # fmt: skip


def planning_router(planner: PlanningService, forget: Callable[[str], Awaitable[bool]]) -> APIRouter:
    """Return the agents' routes. ``forget`` deletes an agent's conversations, and returns whether there were any."""
    router = APIRouter(tags=["planning"], dependencies=[Depends(planner.limiter.admit_request)])
    registry = planner.registry

    async def call(agent: str, body: Observe | Report | Finish | None = None) -> About:
        def run(durable: DurableAgent) -> About:
            if body is not None:
                apply(durable, body)
            return About(id=agent, segments=durable.agent.segments, decisions=durable.agent.number)

        return await planner.run_with_agent(agent, run)

    @router.post(AGENTS, status_code=201, summary="Create an agent")
    async def create(body: Create, caller: Caller) -> About:
        caller.require(body.id)
        await planner.run_in_thread(lambda: registry.create(body.id, above_limit=not caller.all))
        return About(id=body.id, segments=0, decisions=0)

    @router.get(AGENTS, summary="List the agents of the token")
    async def names(caller: Caller) -> AgentList:
        return AgentList(agents=await planner.run_in_thread(lambda: registry.names(caller.agents)))

    @router.get(AGENT, summary="Get an agent")
    async def about(agent: str) -> About:
        return await call(agent)

    @router.delete(AGENT, status_code=204, response_class=Response, summary="Delete an agent and its chats")
    async def delete(agent: str) -> Response:
        had_conversations = await forget(agent)
        try:
            await planner.run_in_thread(lambda: registry.delete(agent))
        except NotFound:
            if not had_conversations:
                raise
        return Response(status_code=204)

    @router.post(f"{AGENT}/observe", summary="Send new and changed facts")
    async def observe(agent: str, body: Observe) -> About:
        return await call(agent, body)

    @router.post(f"{AGENT}/plan", response_model=Decided, responses=SSE, summary="Choose the next skill")
    async def plan(request: Request, agent: str, body: Plan) -> Response | Decided:
        events = planner.plan(agent, body)
        first = await anext(events)  # raises request errors here, so that they set the HTTP status
        if body.stream:
            content = with_error_event(request.url.path, _encode(first, events), error_event)
            return StreamingResponse(content, media_type="text/event-stream", headers=HEADERS)
        *_, (_, decision) = [first, *[item async for item in events]]
        return Decided(**decision)

    @router.post(f"{AGENT}/report", summary="Report the outcome of a decision")
    async def report(agent: str, body: Report) -> About:
        return await call(agent, body)

    @router.post(f"{AGENT}/finish", summary="End the task")
    async def finish(agent: str, body: Finish) -> About:
        return await call(agent, body)

    @router.get(f"{AGENT}/memory", responses={200: BYTES}, response_class=Response, summary="Download the memory")
    async def save(agent: str) -> Response:
        content = await planner.run_with_agent(agent, lambda durable: pack_state(durable.dump()))
        return Response(content, media_type=MEMORY)

    upload = {"requestBody": {"required": True, **BYTES}}

    @router.put(f"{AGENT}/memory", openapi_extra=upload, summary="Upload a memory")
    async def restore(request: Request, agent: str) -> About:
        body = await request.body()
        most = registry.limits.memory_values
        await planner.run_in_thread(lambda: registry.replace(agent, unpack_state(body, "the body", most)))
        return await call(agent)

    return router


async def _encode(first: Event, rest: AsyncIterator[Event]) -> AsyncIterator[bytes]:
    yield event(first[1], first[0])
    async for name, data in rest:
        yield event(data, name)
