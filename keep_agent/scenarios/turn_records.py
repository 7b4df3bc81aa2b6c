"""Records of turns: text and cost of each turn, a run folder of turns, and sums over a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any, ClassVar

from keep_agent.rollout.run_folder import Result, RunFolder

TURNS_FILE = "turns.jsonl"
COLD = "cold"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCost:
    """Cost of an answer. Times are in ms, other numbers are counts of tokens."""

    kind: str  # match of the prompt with the stored text: exact | extend | diverge | miss, see docs/agents.md
    origin: str  # place of the reused rows: hot (memory) | warm (disk) | shared (prefix) | cold (none)
    kept: int  # prompt tokens whose rows were reused
    new: int  # prompt tokens that were computed
    generated: int  # tokens of the answer
    ttft_ms: float  # from the prompt's text to its logits: look-up, reading from disk, prefill
    decode_ms: float  # from the logits to the end of the answer

    @property
    def costs(self) -> dict[str, Any]:
        """Fields of `TurnCost`, without those of a subclass."""
        return {field.name: getattr(self, field.name) for field in fields(TurnCost)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn(TurnCost):
    index: int
    id: str  # phase/round/agent
    phase: str
    round: int
    agent: str
    name: str
    text: str
    audience: tuple[str, ...]
    memory: str  # id of the agent's stored KV rows

    @property
    def hit(self) -> bool:
        return self.origin != COLD

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"ttft_ms": round(self.ttft_ms, 3), "decode_ms": round(self.decode_ms, 3)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Turn:
        return cls(**{**row, "audience": tuple(row["audience"])})


class ScenarioFolder(RunFolder):
    """Run folder with a line per turn, written completely before the next turn begins, and a summary."""

    lines: ClassVar[str] = TURNS_FILE
    result: ClassVar[type[Result]] = Turn


def summarize(turns: Iterable[Turn]) -> dict[str, Any]:
    """Sum costs over all turns, and per agent. ``saved``: reused share of the prompt tokens; ``ttft_ms``: median."""
    all_turns = list(turns)
    agents = dict.fromkeys(turn.agent for turn in all_turns)
    per_agent = {agent: _sum_costs([turn for turn in all_turns if turn.agent == agent]) for agent in agents}
    return {**_sum_costs(all_turns), "per_agent": per_agent}


def _sum_costs(turns: list[Turn]) -> dict[str, Any]:
    reused, new = sum(turn.kept for turn in turns), sum(turn.new for turn in turns)
    kinds = [turn.kind for turn in turns]
    return {
        "turns": len(turns), "hits": sum(turn.hit for turn in turns),
        "kinds": {kind: kinds.count(kind) for kind in sorted(set(kinds))}, "prompt_tokens": reused + new,
        "prefill_tokens": new, "saved_tokens": reused, "saved": round(reused / (reused + new), 4) if turns else 0.0,
        "generated_tokens": sum(turn.generated for turn in turns),
        "ttft_ms": round(median(turn.ttft_ms for turn in turns), 3) if turns else None,
        "seconds": round(sum(turn.ttft_ms + turn.decode_ms for turn in turns) / 1e3, 3),
    }  # fmt: skip
