"""Records of turns: words and cost of each, the folder of a run, and the sums over it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any, ClassVar

from keep_agent.rollout.run_folder import Result, RunFolder

TURNS = "turns.jsonl"
COLD = "cold"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of the model's words. Times in ms, the rest in tokens."""

    kind: str  # how the prompt's text matched the stored one: exact | extend | diverge | miss
    origin: str  # where the rows were: hot | warm | cold
    kept: int  # tokens of the prompt whose rows were there
    new: int  # those that were computed
    generated: int
    ttft_ms: float  # from the prompt's text to its logits: look-up, disk, prefill
    decode_ms: float

    @property
    def costs(self) -> dict[str, Any]:
        """The fields above, without those of a subclass."""
        return {field.name: getattr(self, field.name) for field in fields(Cost)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn(Cost):
    """One agent's words and what they cost."""

    index: int
    id: str  # phase/round/agent
    phase: str
    round: int
    agent: str
    name: str
    text: str
    audience: tuple[str, ...]
    memory: str  # the id of the agent's rows

    @property
    def hit(self) -> bool:
        """Tell whether any rows were there."""
        return self.origin != COLD

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"ttft_ms": round(self.ttft_ms, 3), "decode_ms": round(self.decode_ms, 3)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Turn:
        return cls(**{**row, "audience": tuple(row["audience"])})


class ScenarioFolder(RunFolder):
    """A line per turn, each written whole before the next turn begins; then the summary."""

    lines: ClassVar[str] = TURNS
    result: ClassVar[type[Result]] = Turn


def summarize(turns: Iterable[Turn]) -> dict[str, Any]:
    """Sums over all turns and over each agent's.

    ``prefill_tokens`` were computed of ``prompt_tokens``, which computing every prompt from nothing would have cost;
    ``saved_tokens`` is the difference, ``saved`` its share.
    """
    all_turns = list(turns)
    agents = dict.fromkeys(turn.agent for turn in all_turns)
    per_agent = {agent: _sums([turn for turn in all_turns if turn.agent == agent]) for agent in agents}
    return {**_sums(all_turns), "per_agent": per_agent}


def _sums(turns: list[Turn]) -> dict[str, Any]:
    kept, new = sum(turn.kept for turn in turns), sum(turn.new for turn in turns)
    kinds = [turn.kind for turn in turns]
    return {
        "turns": len(turns),
        "hits": sum(turn.hit for turn in turns),
        "kinds": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "prompt_tokens": kept + new,
        "prefill_tokens": new,
        "saved_tokens": kept,
        "saved": round(kept / (kept + new), 4) if turns else 0.0,
        "generated_tokens": sum(turn.generated for turn in turns),
        "ttft_ms": round(median(turn.ttft_ms for turn in turns), 3) if turns else None,
        "seconds": round(sum(turn.ttft_ms + turn.decode_ms for turn in turns) / 1e3, 3),
    }
