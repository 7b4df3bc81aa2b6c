"""``/v1/scenarios``: several agents of one house talk, and nobody is told what was not for its ears."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator

from keep_agent.scenarios import turn_records as turns
from keep_agent.server.auth.access_rules import Caller
from keep_agent.server.auth.tokens import Access
from keep_agent.server.chat.conversations import Conversations
from keep_agent.server.error_handlers import NotFound
from keep_agent.server.limits.concurrency_limiter import ConcurrencyLimiter
from keep_agent.server.limits.strict_models import Strict
from keep_agent.server.scenarios.limits import sent_scenario, shipped_scenario
from keep_agent.server.scenarios.registry import Running, Scenarios, voice

PATH = "/v1/scenarios"
SMALL = {
    "name": "spare-key",
    "agents": {"ada": {"system": "You are Ada."}, "ben": {"system": "You are Ben."}},
    "phases": [{"name": "morning", "participants": ["ada", "ben"], "max_tokens": 4}],
}


class Begin(Strict):
    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "handover"}, {"scenario": SMALL}]})
    name: str | None = Field(None, description="One that comes with the package")
    scenario: dict[str, Any] | None = Field(None, description="A whole one, with the keys of docs/phases.md")

    @model_validator(mode="after")
    def _either(self) -> Begin:
        if (self.name is None) == (self.scenario is None):
            raise ValueError("give either name or scenario")
        return self


class Play(Strict):
    model_config = ConfigDict(json_schema_extra={"examples": [{"turns": 1}]})
    turns: StrictInt = Field(1, ge=1, le=1000, description="At most so many are heard by the token's agents")


class Shown(BaseModel):
    """``agents`` are those with whose ears the token hears; ``about`` is shown to one that has them all. ``played`` and
    ``turns`` count the turns that these agents hear.
    """

    id: str
    name: str
    about: str
    agents: list[str]
    played: int
    turns: int
    done: bool
    failed: bool


class ShownTurn(BaseModel):
    """``index`` counts the turns that the token's agents heard, from 0; ``audience``: which of them heard it. What it
    cost is shown to the speaker's token only.
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


class Played(BaseModel):
    """The turns that the token's agents heard, and their number."""

    played: int
    turns: list[ShownTurn]
    done: bool


class Heard(BaseModel):
    phase: str
    text: str


class Transcript(BaseModel):
    agent: str
    phases: list[Heard]


class ScenarioRoutes:
    def __init__(self, scenarios: Scenarios, conversations: Conversations, limiter: ConcurrencyLimiter) -> None:
        self._scenarios, self._conversations = scenarios, conversations
        self.router = APIRouter(tags=["scenarios"])
        add, busy = self.router.add_api_route, [Depends(limiter.admitted)]
        add(PATH, self.create, methods=["POST"], status_code=201, dependencies=busy, summary="Begin a scenario")
        add(PATH, self.all, methods=["GET"], summary="Those that are played")
        add(f"{PATH}/{{number}}", self.one, methods=["GET"], summary="How far one is")
        add(f"{PATH}/{{number}}", self.delete, methods=["DELETE"], status_code=204, summary="End one")
        add(f"{PATH}/{{number}}/turns", self.play, methods=["POST"], dependencies=busy, summary="Play on")
        add(f"{PATH}/{{number}}/transcript", self.transcript, methods=["GET"], summary="What an agent heard")

    async def create(self, body: Begin, caller: Caller) -> Shown:
        """Takes a token for all agents of the scenario: ids ``persist_{scenario}_{agent}``."""
        if body.name is not None:
            made = await self._conversations.in_thread(partial(shipped_scenario, body.name))
        else:
            limits = self._conversations.limits
            made = await self._conversations.in_thread(partial(sent_scenario, body.scenario or {}, limits))
        return shown(self._scenarios.create(caller, made), caller)

    async def all(self, caller: Caller) -> list[Shown]:
        return [shown(running, caller) for running in self._scenarios.all(caller)]

    async def one(self, number: str, caller: Caller) -> Shown:
        return shown(self._scenarios.get(caller, number), caller)

    async def delete(self, number: str, caller: Caller) -> None:
        """Permanent agents keep their rows."""
        await self._scenarios.delete(caller, number)

    async def play(self, request: Request, number: str, body: Play, caller: Caller) -> Played:
        """Plays until the token's agents have heard so many turns. Ends early where the scenario does, or the client
        goes. Nothing tells how many others were played meanwhile.

        One request at a time plays it on; others are told to come again, and wait nowhere.
        """
        running = self._scenarios.get(caller, number)
        async with running.limiter.entered():
            first = len(running.heard(caller))
            while len(running.heard(caller)) < first + body.turns and not await request.is_disconnected():
                if await self._scenarios.play(caller, running) is None:
                    break
            heard = enumerate(running.heard(caller)[first:], first)
        told = [told_turn(turn, index, running.ears(caller)) for index, turn in heard]
        return Played(played=len(told), turns=told, done=running.done)

    async def transcript(self, number: str, agent: str, caller: Caller) -> Transcript:
        """Phase by phase, as the agent itself would read it."""
        running = self._scenarios.get(caller, number)
        caller.require(voice(running.scenario, agent))
        if agent not in running.scenario.agents:
            heard = ", ".join(sorted(running.ears(caller)))
            raise NotFound(f"the scenario has no agent {agent[:64]!r}; you may ask for: {heard}")
        phases = [Heard(phase=phase.name, text=running.story.transcript(phase.name, agent))
                  for phase in running.scenario.phases]  # fmt: skip
        return Transcript(agent=agent, phases=[heard for heard in phases if heard.text])


def shown(running: Running, access: Access) -> Shown:
    scenario, ears = running.scenario, running.ears(access)
    about = scenario.about if len(ears) == len(scenario.agents) else ""
    return Shown(
        id=running.id, name=scenario.name, about=about, agents=sorted(ears),
        played=len(running.heard(access)), turns=running.audible(access), done=running.done, failed=running.failed,
    )  # fmt: skip


def told_turn(turn: turns.Turn, index: int, ears: frozenset[str]) -> ShownTurn:
    costs = turn.costs if turn.agent in ears else {}
    return ShownTurn(
        index=index, phase=turn.phase, round=turn.round, agent=turn.agent, name=turn.name, text=turn.text,
        audience=[agent for agent in turn.audience if agent in ears], **costs,
    )  # fmt: skip
