"""Routes of scenarios below ``/v1/scenarios``: each token reads only what its agents heard."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator

from keep_agent.scenarios.turn_records import Turn
from keep_agent.server.auth.access_rules import Caller
from keep_agent.server.auth.tokens import Access
from keep_agent.server.chat.conversations import Conversations
from keep_agent.server.error_handlers import NotFound
from keep_agent.server.limits.concurrency_limiter import ConcurrencyLimiter
from keep_agent.server.limits.strict_models import Strict
from keep_agent.server.scenarios.registry import RunningScenario, Scenarios, owner_id, sent_scenario, shipped_scenario

PATH = "/v1/scenarios"
EXAMPLE_SCENARIO = {
    "name": "spare-key",
    "agents": {"ada": {"system": "You are Ada."}, "ben": {"system": "You are Ben."}},
    "phases": [{"name": "morning", "participants": ["ada", "ben"], "max_tokens": 4}],
}


class Begin(Strict):
    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "handover"}, {"scenario": EXAMPLE_SCENARIO}]})
    name: str | None = Field(None, description="A scenario of the package")
    scenario: dict[str, Any] | None = Field(None, description="A complete scenario, with the keys of docs/phases.md")

    @model_validator(mode="after")
    def _either(self) -> Begin:
        if (self.name is None) == (self.scenario is None):
            raise ValueError("give either name or scenario")
        return self


class Play(Strict):
    model_config = ConfigDict(json_schema_extra={"examples": [{"turns": 1}]})
    turns: StrictInt = Field(1, ge=1, le=1000, description="Maximum number of turns that the token's agents hear")


class ScenarioState(BaseModel):
    """State of a scenario. ``agents``: those that the token may read. If it may not read all, ``about`` is empty.

    ``played`` and ``turns`` count the turns that these agents hear: so far, and in the whole scenario.
    """

    id: str
    name: str
    about: str
    agents: list[str]
    played: int
    turns: int
    done: bool
    failed: bool


class ScenarioTurn(BaseModel):
    """A turn. ``index`` counts the turns that the token's agents heard, from 0. ``audience`` lists the token's agents
    that heard this turn. The turn's cost is included only if the token may read its speaker.
    """

    index: int
    phase: str
    round: int
    agent: str
    name: str
    text: str
    audience: list[str]
    kind: str | None = None
    origin: str | None = None
    kept: int | None = None
    new: int | None = None
    generated: int | None = None
    ttft_ms: float | None = None
    decode_ms: float | None = None


class NewTurns(BaseModel):
    """New turns that the token's agents heard, and their number."""

    played: int
    turns: list[ScenarioTurn]
    done: bool


class PhaseText(BaseModel):
    phase: str
    text: str


class Transcript(BaseModel):
    agent: str
    phases: list[PhaseText]


def scenario_router(scenarios: Scenarios, conversations: Conversations, limiter: ConcurrencyLimiter) -> APIRouter:
    router, busy, single = APIRouter(tags=["scenarios"]), [Depends(limiter.admit_request)], f"{PATH}/{{number}}"

    @router.post(PATH, status_code=201, dependencies=busy, summary="Begin a scenario")
    async def create(body: Begin, caller: Caller) -> ScenarioState:
        """Create a scenario. Needs a token for all its agents, whose ids are ``persist_{scenario}_{agent}``."""
        if body.name is not None:
            load = partial(shipped_scenario, body.name)
        else:
            load = partial(sent_scenario, body.scenario or {}, conversations.limits)
        return state_of(scenarios.create(caller, await conversations.in_thread(load)), caller)

    @router.get(PATH, summary="List the running scenarios")
    async def all(caller: Caller) -> list[ScenarioState]:
        return [state_of(running, caller) for running in scenarios.all(caller)]

    @router.get(single, summary="Get a scenario")
    async def get(number: str, caller: Caller) -> ScenarioState:
        return state_of(scenarios.get(caller, number), caller)

    @router.delete(single, status_code=204, summary="End a scenario")
    async def delete(number: str, caller: Caller) -> None:
        """Delete a scenario. Permanent agents keep their KV rows."""
        await scenarios.delete(caller, number)

    @router.post(f"{single}/turns", dependencies=busy, summary="Play turns")
    async def play(request: Request, number: str, body: Play, caller: Caller) -> NewTurns:
        """Play until the token's agents have heard ``turns`` turns, the scenario ends, or the client disconnects. The
        response does not reveal how many other turns were played in between.

        Only one request at a time plays a scenario; further requests are rejected with a retry time.
        """
        running = scenarios.get(caller, number)
        async with running.limiter.admit():
            first = len(running.readable_turns(caller))
            while len(running.readable_turns(caller)) < first + body.turns and not await request.is_disconnected():
                if await scenarios.play(caller, running) is None:
                    break
            new = enumerate(running.readable_turns(caller)[first:], first)
        turns = [turn_json(turn, index, running.readable_agents(caller)) for index, turn in new]
        return NewTurns(played=len(turns), turns=turns, done=running.done)

    @router.get(f"{single}/transcript", summary="Read an agent's transcript")
    async def transcript(number: str, agent: str, caller: Caller) -> Transcript:
        """Return the text of each phase that an agent heard, as in the agent's own prompt."""
        running = scenarios.get(caller, number)
        caller.require(owner_id(running.scenario, agent))
        if agent not in running.scenario.agents:
            readable = ", ".join(sorted(running.readable_agents(caller)))
            raise NotFound(f"the scenario has no agent {agent[:64]!r}; you may read: {readable}")
        texts = {phase.name: running.transcripts.transcript(phase.name, agent) for phase in running.scenario.phases}
        phases = [PhaseText(phase=name, text=text) for name, text in texts.items() if text]
        return Transcript(agent=agent, phases=phases)

    return router


def state_of(running: RunningScenario, access: Access) -> ScenarioState:
    scenario, readable = running.scenario, running.readable_agents(access)
    about = scenario.about if len(readable) == len(scenario.agents) else ""
    return ScenarioState(
        id=running.id, name=scenario.name, about=about, agents=sorted(readable), done=running.done,
        failed=running.failed, played=len(running.readable_turns(access)), turns=running.count_readable_turns(access),
    )  # fmt: skip


def turn_json(turn: Turn, index: int, readable: frozenset[str]) -> ScenarioTurn:
    row = asdict(turn) | {"index": index, "audience": [agent for agent in turn.audience if agent in readable]}
    hidden = () if turn.agent in readable else turn.costs
    return ScenarioTurn(**{name: value for name, value in row.items() if name not in hidden})
