"""From what a planner reports to the numbers of a step."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from keep_agent.rollout.results import StepNumbers

if TYPE_CHECKING:
    from planners.base import Decision


def step_numbers(decision: Decision, task: int, wall_ms: float) -> StepNumbers:
    """Numbers of one decision; those of a planner without a model are zero.

    ``wall_ms`` is what observing and deciding took by the clock on the wall. Whatever of it the memory did not time
    itself, before the logits (facts to text, the query's tokens), belongs to the part ``update``, so that ``ttft_ms``
    leaves nothing out; harvesting and scoring come after the logits. ``ttft_overlapped_ms`` leaves out the encoding of
    invalidated blocks, which a robot can do while it moves; a cold start has nothing to hide behind and counts in full.
    """
    prefill = decision.prefill
    if prefill is None:
        return StepNumbers(task=task)
    times = prefill.timings
    ttft = max(wall_ms - prefill.after_ms - decision.score_ms, times.total)
    return StepNumbers(
        task=task,
        **asdict(prefill.counts),
        parts={**asdict(times), "update": times.update + ttft - times.total},
        ttft_ms=ttft,
        ttft_overlapped_ms=ttft - (0.0 if prefill.cold else times.encode),
        score_ms=decision.score_ms,
        score_tokens=decision.score_tokens,
        raw_reads=prefill.reads.raw,
        live_reads=prefill.reads.live,
        cold=prefill.cold,
        flips=len(prefill.flips),
    )
