from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from keep_agent.errors import DataError
from planners.tiny.tokenizer import BOS, PAD
from planners.training.batches import (
    ADAPTER_CURRICULUM,
    ADAPTER_LEVELS,
    DECISIONS,
    GOALS,
    LEVELS,
    LOOKUPS,
    RECALL_SHARE,
    BatchSource,
    shuffled_rollouts,
)
from planners.training.options import TRANSCRIPT_TOKENS
from planners.training.packing import ROUNDING
from planners.training.rollout_files import Rollout, rollout_files, write_rollouts

Make = Callable[..., Rollout]


@pytest.fixture
def files(tmp_path: Path, make_rollout: Make) -> list[Path]:
    for skills in ("grounded", "lota"):
        rollouts = (replace(make_rollout(seed), skills=skills) for seed in range(1000))
        write_rollouts(tmp_path / f"{skills}.jsonl.gz", rollouts)
    return rollout_files(tmp_path)


def make_source(files: list[Path], tokenizer: Tokenizer, level: int, **settings: Any) -> BatchSource:
    bos, pad = tokenizer.token_to_id(BOS), tokenizer.token_to_id(PAD)
    return BatchSource(files, lambda text: tokenizer.encode(text).ids, bos, pad, 1500, seed=0, level=level, **settings)


def test_settings_are_mixed_although_each_file_holds_only_one(files: list[Path]) -> None:
    rollouts = list(islice(shuffled_rollouts(files, seed=3), 1500))
    for start in range(0, 1500, 300):
        counts = Counter(rollout.skills for rollout in rollouts[start : start + 300])
        assert min(counts["lota"], counts["grounded"]) > 60, counts


def test_equal_seeds_give_equal_rollouts(files: list[Path]) -> None:
    first, second = (list(islice(shuffled_rollouts(files, seed=5), 50)) for _ in range(2))
    assert first == second and first != list(islice(shuffled_rollouts(files, seed=6), 50))


def test_batches_have_the_required_size_and_all_kinds_occur(files: list[Path], tokenizer: Tokenizer) -> None:
    source = make_source(files, tokenizer, level=2)
    kinds, expected = set(), {"goal", "plan", "probe", "recall", "step", "trajectory"}
    for _ in range(4000):  # some kinds are rare
        _, batch = source.next()
        kinds |= {kind for row in batch.kinds for kind in row}
        assert batch.ids.shape[0] == 1 or batch.ids.numel() <= 1500
        if kinds == expected:
            break
    assert kinds == expected


def test_rollouts_without_type_level_skills_are_fed_without_plans(files: list[Path], tokenizer: Tokenizer) -> None:
    grounded = [path for path in files if path.name.startswith("grounded")]
    source = make_source(grounded, tokenizer, level=len(LEVELS) - 1)
    kinds = {kind for _ in range(60) for row in source.next()[1].kinds for kind in row}
    assert "plan" not in kinds and "step" in kinds


def test_long_transcripts_continue_through_the_stream(make_rollout: Make, tmp_path: Path, tokenizer: Tokenizer) -> None:
    house = make_rollout(1)
    stream = replace(house, skills="grounded", tasks=house.tasks * 30)
    write_rollouts(tmp_path / "long.jsonl.gz", [stream] * 8)
    source = make_source(rollout_files(tmp_path), tokenizer, len(LEVELS) - 1, transcript=TRANSCRIPT_TOKENS + 500)
    batches = [batch for _ in range(60) for batch in (source.next()[1],) if batch.kinds[0][0] == "trajectory"]
    source.close()
    assert batches and all(batch.causal for batch in batches if len(batch.kinds) == 1)  # short rests share a batch
    assert max(batch.ids.shape[1] - batch.memory for batch in batches) > TRANSCRIPT_TOKENS


def test_a_broken_file_stops_the_training_thread(files: list[Path], tokenizer: Tokenizer) -> None:
    for path in files:
        path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(DataError, match=r"jsonl\.gz"):
        source = make_source(files, tokenizer, level=0)
        for _ in range(1000):
            source.next()


def test_a_closed_feed_leaves_no_thread(files: list[Path], tokenizer: Tokenizer) -> None:
    source = make_source(files, tokenizer, 0)
    source.next()
    assert source._thread.is_alive()
    source.close()
    assert not source._thread.is_alive()


def test_windows_are_drawn_by_the_shares_of_the_curriculum(files: list[Path], tokenizer: Tokenizer) -> None:
    source = make_source(files, tokenizer, 0, curriculum=ADAPTER_CURRICULUM)
    source.close()
    source._rng, level = random.Random(0), ADAPTER_LEVELS[-1]
    counts = Counter(source._draw_mix(level) for _ in range(4000))
    plans = {mix: level.plans * share for mix, share in ADAPTER_CURRICULUM.plan_mixes.items()}
    rest = (1 - level.lookups - level.plans) * (1 - RECALL_SHARE)
    due = {LOOKUPS: level.lookups, **plans, DECISIONS: rest * ADAPTER_CURRICULUM.decision_share}
    assert {mix: counts[mix] / 4000 for mix in due} == pytest.approx(due, abs=0.03)
    source._goal_share = 0.5
    goals = Counter(source._draw_mix(level) for _ in range(4000))[GOALS] / 4000
    assert goals == pytest.approx(0.5 + 0.5 * due[GOALS], abs=0.03)


def test_the_share_of_goals_alone_reaches_the_batches(files: list[Path], tokenizer: Tokenizer) -> None:
    source = make_source(files, tokenizer, 0, goal_share=1.0)
    batches = [source.next()[1] for _ in range(20)]
    source.close()
    assert all(set(kinds) == {"goal"} for batch in batches for kinds in batch.kinds)
    assert all(batch.memory <= ROUNDING for batch in batches), "only the start token precedes the slots"
