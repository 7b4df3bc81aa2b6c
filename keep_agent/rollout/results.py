"""Results of a rollout as plain data: numbers per step, outcome per task, result per episode."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Row = TypeVar("Row")
PARTS = ("update", "embed", "encode", "retrieve", "ask", "load", "prefill")  # parts of the time to first token
STOPS = ("success", "done", "max_steps", "crash")


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """Cost of one decision (docs/evaluation.md). ``*_tokens`` count rows, ``*_token_layers`` rows x layers."""

    task: int = 0
    layers: int = 0  # layers of the model; 0 without a model
    parts: Mapping[str, float] | None = None  # time in ms of each of PARTS; their sum is ttft_ms
    ttft_ms: float = 0.0
    ttft_overlapped_ms: float = 0.0
    score_ms: float = 0.0
    prompt_tokens: int = 0
    memory_tokens: int = 0
    fresh_tokens: int = 0
    hit_tokens: int = 0
    invalidated_tokens: int = 0
    token_layers: int = 0
    recomputed_token_layers: int = 0  # of memory rows that have a stored block, without layer 0
    encoded_token_layers: int = 0
    score_tokens: int = 0
    loaded_bytes: int = 0
    prefix_tokens: int = 0  # leading rows with the KV of an identical prefix, including the context
    live_tokens: int = 0  # rows that a retention method keeps after the turn
    longest_tokens: int = 0  # rows of the step's longest prompt; a generated goal needs a second prompt
    raw_reads: int = 0  # rows of KV that the forward passes would read without eviction
    live_reads: int = 0  # rows of KV that the forward passes read
    cold: bool = False  # first prompt since the session was reset
    flips: int = 0  # number of segment groups that became static or dynamic

    @property
    def decision_ms(self) -> float:
        return self.ttft_ms + self.score_ms

    @property
    def request_tokens(self) -> int:
        """Rows of the longest prompt; in older runs, which lack this number, the sum over the step's prompts."""
        return self.longest_tokens or self.prompt_tokens

    @property
    def computed_ratio(self) -> float:
        """Token-layers / (prompt rows x layers)."""
        return self.token_layers / (self.prompt_tokens * self.layers) if self.layers else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults; times are rounded to microseconds."""
        row = {key: value for key, value in asdict(self).items() if value != _DEFAULTS[key]}
        if self.parts is not None:
            row["parts"] = {key: round(value, 3) for key, value in self.parts.items()}
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}


_DEFAULTS = {field.name: field.default for field in fields(StepNumbers)}


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """Result of one task. ``stop`` is one of STOPS; a task after a crash counts as crashed."""

    id: str
    type: str
    instruction: str
    success: bool
    met: int  # goal conditions that hold at the end
    total: int  # goal conditions
    steps: int
    expert_steps: int  # number of skills in the expert's demonstration; 0 without a demonstration
    stop: str


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    index: int
    id: str
    tasks: tuple[TaskOutcome, ...]
    steps: tuple[StepNumbers, ...]
    seconds: float
    error: str = ""  # last line of the traceback of a crash
    restarts: int = 0  # restarts of the simulator
    timed_on: str = ""  # machine, libraries and number of workers, on which times depend; "" without a model

    @property
    def crashed(self) -> bool:
        return bool(self.error)

    def to_json(self) -> dict[str, Any]:
        row = asdict(self)
        row["steps"] = [step.to_json() for step in self.steps]
        return row

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> EpisodeResult:
        """Parse a row written by `to_json`. Raises KeyError, TypeError or ValueError for an invalid row."""
        values = dict(row)
        values["tasks"] = tuple(TaskOutcome(**task) for task in values["tasks"])
        if not values["tasks"]:
            raise ValueError("an episode must have a task")
        values["steps"] = tuple(StepNumbers(**step) for step in values["steps"])
        return cls(**values)


def check_types(result: Row) -> Row:
    """Return a dataclass unchanged. Raises ValueError for a field whose value is not of the annotated type."""
    from pydantic import ValidationError  # lazy: a rollout needs no check

    try:
        _adapter(type(result)).validate_json(json.dumps(result, default=field_dict), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))} is {first['input']!r:.40}: {first['msg']}") from None
    return result


def field_dict(value: Any) -> dict[str, Any]:
    """Return a dataclass's fields without copying their values; for the argument ``default`` of `json.dumps`."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
