"""Metrics of a run, computed from its episode results. Definitions: docs/evaluation.md."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from eval.common.intervals import Interval, share_interval
from keep_agent.rollout.results import PARTS, EpisodeResult, StepNumbers, TaskOutcome

MEANS = (  # fields of `StepNumbers` of which `costs` reports the mean per step
    "prompt_tokens", "fresh_tokens", "score_tokens", "invalidated_tokens", "loaded_bytes", "encoded_token_layers",
)  # fmt: skip


def cluster_of(result: EpisodeResult) -> str:
    """Return the cluster for resampling: the trial, which several annotations share, or the stream's first task."""
    return result.tasks[0].id or result.id


def success_rate(tasks: Sequence[TaskOutcome]) -> float:
    return sum(task.success for task in tasks) / len(tasks) if tasks else 0.0


def goal_condition_rate(tasks: Sequence[TaskOutcome]) -> float:
    """Return goal conditions met / goal conditions set, over all tasks."""
    total = sum(task.total for task in tasks)
    return sum(task.met for task in tasks) / total if total else 0.0


def subgoal_success_rate(tasks: Sequence[TaskOutcome]) -> float:
    """Return the mean over tasks of the share of goal conditions met: LoTA-Bench's metric for Watch-And-Help."""
    return sum(task.met / task.total for task in tasks) / len(tasks) if tasks else 0.0


def path_weighted_success(tasks: Sequence[TaskOutcome]) -> float | None:
    """Return ALFRED's path-weighted success: success x min(1, L*/L), averaged with weight L*.

    L is the number of executed skills, L* that of the scripted expert. Tasks with unknown L* (not started because of a
    crash, or unsolvable for the expert) count as failed, with the mean weight. None if L* is unknown for all tasks.
    """
    known = [task for task in tasks if task.expert_steps]
    if not known:
        return None
    weight = sum(task.expert_steps for task in known) * len(tasks) / len(known)
    return sum(task.success * task.expert_steps**2 / max(task.steps, task.expert_steps) for task in known) / weight


def summarize(results: Sequence[EpisodeResult]) -> dict[str, Any]:
    """Summarize outcome and cost of a run; crashed episodes count as failures."""
    tasks = [task for result in results for task in result.tasks]
    steps = [step for result in results for step in result.steps]
    types, rates = sorted({task.type for task in tasks}), _rates(tasks)
    return {
        "episodes": len(results),
        "tasks": len(tasks),
        "crashed": sum(result.crashed for result in results),
        "restarted_episodes": sum(result.restarts > 0 for result in results),
        "success_rate": rates["success_rate"],
        "success_interval": success_interval(results),
        **rates,
        "per_task_type": {name: _rates([task for task in tasks if task.type == name]) for name in types},
        "stops": dict(sorted(Counter(task.stop for task in tasks).items())),
        "steps": len(steps),
        "steps_per_task": len(steps) / len(tasks) if tasks else 0.0,
        "seconds": sum(result.seconds for result in results),
        **costs([step for step in steps if step.layers]),
    }


def _rates(tasks: Sequence[TaskOutcome]) -> dict[str, Any]:
    return {
        "tasks": len(tasks),
        "success_rate": success_rate(tasks),
        "goal_condition_rate": goal_condition_rate(tasks),
        "subgoal_success_rate": subgoal_success_rate(tasks),
        "path_weighted_success": path_weighted_success(tasks),
    }


def success_interval(results: Sequence[EpisodeResult]) -> Interval:
    samples: dict[str, list[float]] = defaultdict(list)
    for result in results:
        samples[cluster_of(result)] += [float(task.success) for task in result.tasks]
    return share_interval(samples)


def spread(values: Iterable[float]) -> dict[str, float] | None:
    """Return median, 95th percentile and mean; None without values."""
    array = np.fromiter(values, float)
    if not array.size:
        return None
    p50, p95 = np.percentile(array, [50, 95])
    return {"p50": float(p50), "p95": float(p95), "mean": float(array.mean())}


def costs(steps: Sequence[StepNumbers]) -> dict[str, Any]:
    """Summarize times and rows of the steps at which a model ran."""

    def total(name: str) -> float:
        return sum(getattr(step, name) for step in steps)

    def ratio(top: float, bottom: float) -> float | None:
        return top / bottom if bottom else None

    count, recomputable = len(steps), sum(s.memory_tokens * (s.layers - 1) for s in steps)
    return {
        "ttft_ms": spread(s.ttft_ms for s in steps),
        "ttft_parts_ms": {part: spread((s.parts or {}).get(part, 0.0) for s in steps) for part in PARTS},
        **{name: spread(getattr(s, name) for s in steps) for name in ("ttft_overlapped_ms", "decision_ms", "score_ms")},
        "ttft_cold_ms": spread(s.ttft_ms for s in steps if s.cold),
        "ttft_flip_ms": spread(s.ttft_ms for s in steps if s.flips and not s.cold),
        "cold_steps": sum(s.cold for s in steps),
        "flip_steps": sum(bool(s.flips) and not s.cold for s in steps),
        **{name: ratio(total(name), count) for name in MEANS},
        "computed_ratio": ratio(total("token_layers"), sum(s.prompt_tokens * s.layers for s in steps)),
        "recomputed_ratio": ratio(total("recomputed_token_layers"), recomputable),
        "kv_hit_rate": ratio(total("hit_tokens"), total("memory_tokens")),
        "prefix_hit_rate": ratio(total("prefix_tokens"), total("prompt_tokens")),
        "peak_request_tokens": max((s.request_tokens for s in steps), default=None),
        "peak_live_tokens": max((s.live_tokens for s in steps), default=None),
        "raw_kv_reads": ratio(total("raw_reads"), count),
        "live_kv_reads": ratio(total("live_reads"), count),
    }
