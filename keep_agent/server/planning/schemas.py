"""Request and answer models of planning agents."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from keep_agent.agent.types import Decision
from keep_agent.server.limits.strict_models import Items, Strict

ROBOT = {"id": "agent", "category": "agent", "type": "agent", "place": "counter_1"}
MUG = {"id": "mug_1", "category": "object", "type": "mug", "place": "cabinet_1", "states": ["dirty"]}
CABINET = {"id": "cabinet_1", "category": "receptacle", "type": "cabinet", "states": ["closed"]}
SKILLS = ["go to cabinet 1", "open cabinet 1", "done"]
SUMMARY = ("queued_ms", "timings", "counts", "ahead")
Detail = Literal["none", "summary", "full"]


def _example(**values: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [values]})


class Create(Strict):
    model_config = _example(id="kitchen")
    id: StrictStr = Field(description="1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'", max_length=64)


class FactRow(Strict):
    """One thing as the robot knows it; fields that are left out are unknown or false."""

    model_config = _example(**MUG)
    id: StrictStr = Field(description="Its name: type and number")
    category: Literal["object", "receptacle", "agent"]
    type: StrictStr
    place: StrictStr | None = Field(None, description="The receptacle it is in or on; 'agent' if the robot holds it")
    holds: StrictStr | None = Field(None, description="The object that the agent holds")
    states: Items[StrictStr] = Field([], description="Words such as open, hot, clean, unseen")
    gone: StrictBool = Field(False, description="It no longer exists")
    sees: Items[StrictStr] = Field([], description="The things in the agent's view")


class Observe(Strict):
    model_config = _example(facts=[ROBOT, CABINET, MUG])
    facts: Items[FactRow]


class Plan(Strict):
    model_config = _example(instruction="put the mug on the table", skills=SKILLS)
    instruction: StrictStr
    skills: Items[StrictStr] = Field(description="The skills that are possible now")
    after: StrictInt | None = Field(
        None, description="Number of the last decision you know, 0 before the first: a request that is repeated with "
        "it makes no second decision",
    )  # fmt: skip
    trace: Detail = Field("summary", description="Detail of the answer's trace of how the prompt was made")
    stream: StrictBool = Field(False, description="Answer with server-sent events: ready, then decision")


class Report(Strict):
    model_config = _example(ok=False, message="the cabinet is locked", number=3)
    ok: StrictBool
    message: StrictStr = Field("", description="The reason if it failed")
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


def decision_json(decision: Decision, detail: Detail) -> dict[str, Any]:
    """Return the fields of `Decided`, with as much of the trace as ``detail`` says."""
    trace = decision.trace
    keys = {"none": (), "summary": SUMMARY, "full": tuple(trace)}[detail]
    return {
        "skill": decision.skill,
        "scores": [[skill, round(score, 4)] for skill, score in decision.scores],
        "number": decision.number,
        "trace": {key: trace[key] for key in keys if key in trace},
        "warnings": list(decision.warnings),
    }
