"""Comparison of runs with known differences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from eval import compare as comparison
from eval.common.intervals import unseen_share, wilson
from eval.common.tables import markdown
from eval.compare import Run, by_length, choose_baseline, compare, load_runs, setting_differences, with_common_episodes
from keep_agent.errors import ConfigError, DataError
from keep_agent.rollout.results import EpisodeResult, StepNumbers, TaskOutcome
from keep_agent.rollout.run_folder import RunFolder


def episode(index: int, success: bool, ttft: float, tokens: int = 100, trial: str = "") -> EpisodeResult:
    stop = "success" if success else "done"
    task = TaskOutcome(trial or f"t{index}", "pick", "Do it.", success, 1, 1, 2, 2, stop)
    rows = {"prompt_tokens": tokens, "memory_tokens": tokens // 2, "token_layers": 5 * tokens}
    step = StepNumbers(layers=10, ttft_ms=ttft, **rows)
    return EpisodeResult(index, f"e{index}", (task,), (step,), 0.1)


def run(name: str, *episodes: EpisodeResult, config: dict | None = None) -> Run:
    return Run(name, Path(name), config or {"planner": {"name": name}}, {e.id: e for e in episodes})


def test_differences_are_paired() -> None:
    base = run("full_recompute", *(episode(i, i % 2 == 0, 100.0 * 2**i) for i in range(6)))
    fast = run("keep", *(episode(i, i % 2 == 0 or i == 1, 25.0 * 2**i) for i in range(6)))
    row = compare(fast, base)
    difference = row.success_difference
    assert difference.mean == pytest.approx(1 / 6) and difference.unclear
    assert difference.interval[0] == -unseen_share(6), "a single one may be chance"
    assert (difference.more, difference.fewer, difference.pairs, difference.clusters) == (1, 0, 6, 6)
    assert row.ttft_ratio == pytest.approx(0.25) and row.ttft_ratio_interval == pytest.approx((0.25, 0.25))
    assert row.computed_ratio == 0.5
    assert compare(base, base).ttft_ratio is None
    assert compare(base, base).success_interval == pytest.approx(wilson(0.5, 6))


def test_annotations_of_one_trial_count_as_one_observation() -> None:
    base = run("a", *(episode(i, False, 1.0) for i in range(20)))
    separate = run("b", *(episode(i, i < 10, 1.0) for i in range(20)))
    trials = ["x" if i < 10 else "y" for i in range(20)]
    together = run("b", *(episode(i, i < 10, 1.0, trial=trials[i]) for i in range(20)))
    narrow, wide = comparison.difference_of(separate, base).interval, comparison.difference_of(together, base).interval
    assert wide == (-unseen_share(2), 1.0) and narrow[1] - narrow[0] < 0.6 and narrow[0] > 0


def test_steps_are_binned_by_prompt_length() -> None:
    base = run("a", episode(0, True, 10.0, 100), episode(1, True, 80.0, 800))
    fast = run("b", episode(0, True, 10.0, 120), episode(1, True, 20.0, 700))
    cells = by_length(fast, base, (0, 500, 1000))
    assert [(cell.low, cell.steps, cell.ttft_ratio) for cell in cells] == [(0, 1, 1.0), (500, 1, 0.25)]
    assert by_length(fast, base, (2000, 3000)) == []


def test_only_common_episodes_are_compared() -> None:
    zero, single, two = (episode(i, True, 1.0) for i in range(3))
    first, second = run("a", zero, single), run("b", single, two)
    assert [list(r.episodes) for r in with_common_episodes([first, second])] == [["e1"], ["e1"]]
    subset = run("c", replace(episode(1, True, 1.0), index=0))
    assert list(with_common_episodes([first, subset])[1].episodes) == ["e1"]
    with pytest.raises(DataError, match="no episode in common"):
        with_common_episodes([run("a", episode(0, True, 1.0)), run("b", episode(1, True, 1.0))])


def test_unequal_settings_are_named_and_full_recomputation_is_the_baseline() -> None:
    keep = run("keep", config={"env": {"skills": "lota"}, "planner": {"name": "keep"}})
    full = run("full_recompute", config={"env": {"skills": "grounded"}, "planner": {"name": "full_recompute"}})
    assert setting_differences([keep, full]) == ["env.skills"]
    assert choose_baseline([keep, full], None) is full and choose_baseline([keep, full], "keep") is keep


def test_runs_with_a_memory_share_its_grouping_and_their_weights() -> None:
    def remembering(window: int, weights: str) -> Run:
        return run("keep", config={"memory": {"name": "keep", "grouping": {"window": window}}, "weights": weights})

    alone = run("expert", config={"weights": None})
    assert setting_differences([alone, remembering(10, "a"), remembering(10, "a")]) == []
    assert setting_differences([remembering(10, "a"), remembering(20, "b")]) == ["memory.grouping.window", "weights"]


def test_the_speed_of_the_link_is_a_setting() -> None:
    links = {"a": None, "b": 0.05}
    fast, slow = (run(name, config={"memory": {}, "engine": {"link_gigabytes": rate}}) for name, rate in links.items())
    assert setting_differences([fast, slow]) == ["engine.link_gigabytes"]


def test_times_of_several_machines_are_named() -> None:
    first, second = (replace(episode(i, True, 1.0), timed_on=machine) for i, machine in ((0, "A"), (1, "B, 2")))
    untimed = run("expert", episode(0, True, 0.0), episode(1, True, 0.0))
    assert setting_differences([untimed, run("a", first, replace(second, timed_on="A"))]) == []
    resumed = run("b", first, second)
    assert setting_differences([untimed, resumed]) == ["machines that measured the times (A | B, 2)"]


def test_an_episode_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", {"planner": {"name": "keep"}})
    for index in (0, 1):
        folder.commit(replace(episode(index, True, 1.0), id="same"), [])
    with pytest.raises(DataError, match="run: episode 'same' occurs 2 times; play it again"):
        load_runs([tmp_path])


def test_runs_of_the_same_name_are_named_by_their_folder(tmp_path: Path) -> None:
    for name in ("a/0_keep", "b/0_keep"):
        folder = RunFolder.create(tmp_path / name, {"planner": {"name": "keep"}})
        folder.commit(episode(0, True, 1.0), [])
    runs = load_runs([tmp_path, tmp_path / "a" / "0_keep"])
    assert [r.name for r in runs] == ["keep (a/0_keep)", "keep (b/0_keep)"]
    assert choose_baseline(runs, "keep (b/0_keep)") is runs[1] and choose_baseline(runs, None) is runs[0]
    with pytest.raises(ConfigError, match="several runs are called 'keep'"):
        choose_baseline(runs, "keep")
    with pytest.raises(ConfigError, match="no run is called 'kept'"):
        choose_baseline(runs, "kept")


def test_tables_are_printed_in_markdown() -> None:
    base, fast = run("a", episode(0, True, 10.0)), run("b", episode(0, True, 5.0))
    table = comparison.length_table(by_length(fast, base))
    title, gap, heads, rule, *rows = markdown(table).splitlines()
    assert (title, gap) == ("by prompt length", "") and set(rule) == set("|-")
    assert heads.count("|") == rule.count("|") == rows[0].count("|") == 7
    assert rows[0] == "| 0–249 | b | 1 | 5.0 | 0.500 | 0.500 |"
    rows_only = markdown(table).splitlines()
    table.caption = "caption"
    table.add_section()
    table.add_row(*"abcdef")
    assert markdown(table).splitlines() == [*rows_only, "| a | b | c | d | e | f |", "", "caption"]


def test_the_table_of_keys_and_values() -> None:
    numbers = {"prefix_tokens": 300, "live_tokens": 90, "raw_reads": 3000, "live_reads": 1600}
    first, second = episode(0, True, 10.0, 800), episode(1, True, 10.0, 400)
    changed = [replace(r, steps=(replace(r.steps[0], **numbers),), seconds=20.0) for r in (first, second)]
    base = run("a", first, second)
    table = comparison.kv_table([compare(run("b", *changed), base), compare(base, base)])
    *_, row, base_row = markdown(table).splitlines()
    assert row == "| b | 0.50 | 800 | 90 | 3,000 | 1,600 | 40 |"
    assert base_row == "| a | 0.00 | 800 | 0 | 0 | 0 | 0 |"


def test_a_crashed_episode_stays_in_the_comparison() -> None:
    bad = replace(episode(0, False, 1.0), steps=(), error="ValueError: no")
    row = compare(run("b", bad, episode(1, True, 1.0)), run("a", episode(0, True, 2.0), episode(1, True, 2.0)))
    assert row.tasks == 2 and row.success_difference.mean == -0.5 and row.ttft_ratio == 0.5


@pytest.mark.parametrize("config", [{}, {"planner": None}, {"planner": "keep"}])
def test_a_config_without_a_planner_is_one_line(tmp_path: Path, config: dict) -> None:
    with RunFolder.create(tmp_path / "odd", config) as odd:
        odd.commit(episode(0, True, 1.0))
    with pytest.raises(DataError, match=r"odd/config.json: there is no planner.name"):
        load_runs([tmp_path])
