from __future__ import annotations

from typing import Any

import pytest

from eval.common import metrics
from eval.common.metrics import summarize
from keep_agent.rollout.results import EpisodeResult, StepNumbers, TaskOutcome


def task(success: bool, steps: int, expert: int, **more: Any) -> TaskOutcome:
    stop, more = "success" if success else "done", {"type": "a", "id": "t", "met": 1, "total": 2} | more
    more["met"] = more["total"] if success else more["met"]
    return TaskOutcome(instruction="Do it.", success=success, steps=steps, expert_steps=expert, stop=stop, **more)


def step(**values: object) -> StepNumbers:
    return StepNumbers(**({"layers": 10, "prompt_tokens": 100, "memory_tokens": 80} | values))


def test_rates_calculated_by_hand() -> None:
    tasks = [task(True, 10, 5), task(False, 4, 5, met=1, total=3), task(True, 5, 5, total=1)]
    assert metrics.success_rate(tasks) == pytest.approx(2 / 3)
    assert metrics.goal_condition_rate(tasks) == pytest.approx((2 + 1 + 1) / (2 + 3 + 1))
    assert metrics.subgoal_success_rate(tasks) == pytest.approx((1 + 1 / 3 + 1) / 3)
    assert metrics.subgoal_success_rate([]) == 0.0
    assert metrics.path_weighted_success(tasks) == pytest.approx((0.5 * 5 + 0 + 1 * 5) / 15)


def test_a_path_shorter_than_the_demonstration_has_weight_one() -> None:
    assert metrics.path_weighted_success([task(True, 3, 6)]) == 1.0


def test_unknown_lengths_have_the_mean_weight() -> None:
    assert metrics.path_weighted_success([task(True, 4, 4), task(False, 0, 0)]) == pytest.approx(0.5)
    unknown = task(True, 4, 0)  # counts as failed
    assert metrics.path_weighted_success([task(True, 4, 4), unknown]) == pytest.approx(0.5)
    assert metrics.path_weighted_success([task(True, 4, 0)]) is None


def test_ratios_are_of_sums_and_crashed_episodes_count() -> None:
    cold = step(cold=True, flips=1, token_layers=1000, ttft_ms=50.0, parts={"encode": 30.0, "prefill": 20.0})
    warm = step(token_layers=200, hit_tokens=60, ttft_ms=10.0, recomputed_token_layers=72, prompt_tokens=300, flips=1)
    good = EpisodeResult(0, "e0", (task(True, 2, 2),), (cold, warm), 1.0)
    bad = EpisodeResult(1, "e1", (task(False, 0, 2, type="b"),), (), 1.0, error="ValueError: no")
    summary = summarize([good, bad])
    assert summary["success_rate"] == 0.5 and summary["crashed"] == 1 and summary["episodes"] == 2
    assert summary["per_task_type"]["b"]["success_rate"] == 0.0
    assert summary["computed_ratio"] == pytest.approx(1200 / (100 * 10 + 300 * 10))
    assert summary["recomputed_ratio"] == pytest.approx(72 / (160 * 9))
    assert summary["kv_hit_rate"] == pytest.approx(60 / 160)
    assert summary["ttft_ms"]["p50"] == 30.0 and summary["ttft_cold_ms"]["p50"] == 50.0
    assert summary["ttft_flip_ms"]["p50"] == 10.0 and summary["flip_steps"] == 1
    assert summary["ttft_parts_ms"]["encode"]["mean"] == 15.0
    assert summary["stops"] == {"done": 1, "success": 1}


def test_episodes_with_simulator_restarts_are_counted_once() -> None:
    results = [EpisodeResult(i, f"e{i}", (task(True, 1, 1),), (), 0.1, restarts=i) for i in range(3)]
    assert summarize(results)["restarted_episodes"] == 2
    assert summarize(results[:1])["restarted_episodes"] == 0


def test_stored_and_read_keys_and_values() -> None:
    """Rates are ratios of sums, peaks are of single steps, reads per decision; steps without a model are ignored."""
    first = step(prompt_tokens=100, prefix_tokens=40, live_tokens=90, raw_reads=1000, live_reads=700)
    second = step(prompt_tokens=300, prefix_tokens=260, live_tokens=70, raw_reads=3000, live_reads=900)
    summary = summarize([EpisodeResult(0, "e", (task(True, 3, 3),), (first, StepNumbers(), second), 2.5)])
    assert summary["prefix_hit_rate"] == 0.75
    assert (summary["peak_request_tokens"], summary["peak_live_tokens"]) == (300, 90)
    assert (summary["raw_kv_reads"], summary["live_kv_reads"]) == (2000.0, 800.0)
    assert summary["seconds"] == 2.5
    two_prompts = step(prompt_tokens=390, longest_tokens=210)  # prompts of 180 and 210 tokens
    summary = summarize([EpisodeResult(0, "e", (task(True, 3, 3),), (first, two_prompts), 2.5)])
    assert (summary["peak_request_tokens"], summary["prompt_tokens"]) == (210, 245)


def test_a_run_without_a_model_has_no_costs() -> None:
    summary = summarize([EpisodeResult(0, "e", (task(True, 1, 1),), (StepNumbers(),), 0.1)])
    assert summary["ttft_ms"] is None and summary["computed_ratio"] is None and summary["steps"] == 1


def test_annotations_of_a_trial_form_one_cluster() -> None:
    results = [EpisodeResult(i, f"trial-7/{i}", (task(True, 1, 1, id="trial-7"),), (), 0.1) for i in range(3)]
    assert len({metrics.cluster_of(result) for result in results}) == 1
