"""Pages of results: finished runs are kept, interrupted ones resumed, and the page names its commands."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from eval.suite.__main__ import main, parser, run
from eval.suite.page import check_page
from eval.suite.plan import pages, read_page
from keep_agent.errors import ConfigError, KeepError
from keep_agent.rollout.run_folder import CONFIG, EPISODES, SUMMARY, TRACE
from planners.base import Decision, RandomPlanner
from tests.eval.workers.runs import assert_refused
from tests.rewriting import change_object, keep_lines

ROWS = """
  expert: planner=expert
  random: planner=random
"""
PAGE = f"""
title: Two planners
about: What a page is about.
against: expert
rows:{ROWS}settings:
  generated: {{title: Generated houses, overrides: eval.episodes=3 eval.progress=false}}
  seeds: {{title: Of several seeds, overrides: [eval.episodes=2, eval.progress=false, env.stream=2], seeds: [0, 1]}}
commands:
  How loading hides: eval.pipeline --layers 4 --markdown
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    file = tmp_path / "two.yaml"
    file.write_text(PAGE)
    return file


def suite(page: Path, *more: str) -> None:
    folders = ["--out", str(page.parent / "runs"), "--pages", str(page.parent / "pages")]
    run(parser().parse_intermixed_args([str(page), *folders, *more]))


def page_text(page: Path) -> str:
    return (page.parent / "pages" / "two.md").read_text()


def test_a_page_compares_every_row_in_every_setting(page: Path) -> None:
    suite(page)
    text = page_text(page)
    assert text.startswith(f"# Two planners\n\nWhat a page is about.\n\n```sh\npython -m eval.suite {page}\n```")
    assert "## Generated houses" in text and "3 tasks, paired with `expert`" in text
    assert "8 tasks, paired with `expert`" in text  # two streams of two tasks with each of two seeds
    for row in ("| `expert` | 100.0 [", "| `random` | 0.0 [0.0, "):
        assert text.count(row) == 2, text
    assert "## How loading hides\n\n```sh\npython -m eval.pipeline --layers 4 --markdown\n```" in text
    assert "layer_balanced" in text.split("## How loading hides")[1]


def test_finished_runs_are_kept_and_interrupted_ones_resumed(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite(page)
    cell = page.parent / "runs" / "two" / "generated" / "random"
    summary, lines = (cell / SUMMARY).read_text(), (cell / EPISODES).read_text().splitlines()
    untouched = {file: file.stat().st_mtime_ns for file in page.parent.rglob(SUMMARY) if file.parent != cell}
    first = page_text(page)
    (cell / SUMMARY).unlink()
    keep_lines(cell / EPISODES, 1)
    suite(page, "--show")
    assert "random" not in page_text(page).split("## Of several seeds")[0]
    suite(page)
    assert json.loads((cell / SUMMARY).read_text())["tasks"] == json.loads(summary)["tasks"]
    assert (cell / EPISODES).read_text().splitlines()[0] == lines[0]
    assert {file: file.stat().st_mtime_ns for file in untouched} == untouched
    assert page_text(page) == first


def test_a_run_without_episodes_is_resumed_in_its_folder(page: Path) -> None:
    page.write_text(PAGE.split("commands:")[0])
    suite(page)
    cell = page.parent / "runs" / "two" / "generated" / "random"
    first = page_text(page)
    for name in (SUMMARY, TRACE):
        (cell / name).unlink()
    keep_lines(cell / EPISODES, 0)
    suite(page)
    assert (cell / SUMMARY).exists() and not cell.with_name("random-2").exists()
    assert page_text(page) == first


@pytest.mark.parametrize("more", [(), ("--show",)])
def test_a_finished_run_of_other_settings_is_refused(page: Path, more: Sequence[str]) -> None:
    page.write_text(PAGE.split("commands:")[0])
    suite(page, "eval.episodes=1")
    suite(page, "eval.episodes=1", "eval.progress=true")  # display settings may change
    with pytest.raises(ConfigError, match=r"expert was run with other settings: eval.episodes=3 \(was 1\); delete"):
        suite(page, *more)
    page.write_text(page.read_text().replace("planner=random", "planner=random planner.name=wild"))
    for finished in (True, False):
        if not finished:
            (page.parent / "runs" / "two" / "generated" / "random" / SUMMARY).unlink()
        with pytest.raises(ConfigError, match=r"random was run with other settings: planner.name=wild \(was random\)"):
            suite(page, "eval.episodes=1", *more)


@pytest.mark.parametrize(
    "override",
    ["eval.seed=7", "eval.out=elsewhere", "eval.resume=elsewhere", "eval.shard=1/2", "planner=expert", "memory=keep"],
)
def test_settings_of_the_page_itself_cannot_be_overridden(page: Path, override: str) -> None:
    """One seed for all runs would count the same tasks twice; one planner would make all rows equal."""
    with pytest.raises(ConfigError, match=rf"{override} cannot apply to every run of two"):
        suite(page, override)
    assert not (page.parent / "runs").exists()


def test_settings_in_which_rows_differ_cannot_be_overridden(page: Path) -> None:
    rows = "planner=keep memory.recompute.schedule.average=0.1 model=planner-tiny"
    page.write_text(PAGE.replace("planner=random", rows).split("  seeds:")[0])
    plan = read_page(str(page), None)
    schedules = "memory.recompute.schedule.average=0.2", "memory.recompute.schedule={shape: once, average: 0.2}"
    for override in (*schedules, "memory/recompute=none", "model.name=planner-tiny"):
        with pytest.raises(ConfigError, match="cannot apply to every run of two"):
            check_page(plan, page.parent / "runs", [override])
    check_page(plan, page.parent / "runs", ["eval.workers=2"])


def test_a_run_in_which_all_episodes_crash_is_an_error(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page.write_text(PAGE.split("  seeds:")[0])

    def fail(*_: object) -> None:
        raise RuntimeError("no skill")

    monkeypatch.setattr(RandomPlanner, "decide", fail)
    for _ in range(2):  # also when the same command is repeated
        with pytest.raises(KeepError, match=r"all 3 episodes.* crashed"):
            suite(page)
    assert not (page.parent / "pages").exists()


def test_crashes_are_named_below_the_table(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page.write_text(PAGE.split("  seeds:")[0].replace("random:", "Random_1:"))
    real, calls = RandomPlanner.decide, itertools.count()

    def fail_once(self: RandomPlanner, *arguments: Any) -> Decision:
        if next(calls) == 0:
            raise RuntimeError("no skill")
        return real(self, *arguments)

    monkeypatch.setattr(RandomPlanner, "decide", fail_once)
    suite(page)
    text = page_text(page)
    assert "Crashed, which counts as failed: `Random_1` in 1 of 3 episodes." in text


def test_seeds_of_other_weights_are_not_mixed(page: Path) -> None:
    page.write_text(PAGE.split("commands:")[0])
    suite(page)
    for seed in (0, 1):
        file = page.parent / "runs" / "two" / "seeds" / f"random-seed{seed}" / CONFIG
        change_object(file, lambda config, weights=f"{seed}" * 64: config.update(weights=weights))
    with pytest.raises(ConfigError, match="the seeds of random were played with different weights"):
        suite(page, "--show")


def test_rows_may_be_named_by_numbers(page: Path) -> None:
    page.write_text(PAGE.replace("against: expert\n", "").replace("  expert:", "  0.5:"))
    assert list(read_page(str(page), None).rows) == ["0.5", "random"]


def test_a_command_runs_again_if_its_words_or_runs_change(page: Path) -> None:
    page.write_text(PAGE.split("commands:")[0] + "commands:\n  Told: eval.compare RUNS/generated --markdown\n")
    suite(page)
    text = page_text(page)
    assert "| expert |" in text.split("## Told")[1]
    page.write_text(page.read_text().replace(" --markdown", " --markdown --baseline random"))
    suite(page, "--show")
    assert "## Told" not in page_text(page)
    suite(page)
    assert "--baseline random" in page_text(page).split("## Told")[1]
    (file,) = (page.parent / "runs").rglob("told.md")
    os.utime(file, (0, 0))  # older than the runs that it read
    suite(page, "--show")
    assert "## Told" not in page_text(page)


def test_a_page_with_the_name_of_a_package_page_is_refused(page: Path) -> None:
    with pytest.raises(ConfigError, match=r"methods.yaml has the name of a page of the package; rename it"):
        suite(page.rename(page.with_name("methods.yaml")))


def test_the_data_folder_is_made_absolute(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(page.parent)
    assert parser().parse_args(["two.yaml", "--data", "data"]).data == str(page.parent / "data")


def test_overrides_of_the_command_line_apply_to_all_runs(page: Path) -> None:
    page.write_text(PAGE.split("commands:")[0])
    suite(page, "eval.episodes=1", "env.skills=grounded")
    configs = [json.loads(file.read_text())["config"] for file in page.parent.rglob(SUMMARY)]
    assert len(configs) == 6 and {c["env"]["skills"] for c in configs} == {"grounded"}
    assert f"eval.suite {page} eval.episodes=1 env.skills=grounded" in page_text(page)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("against: expert", "against: absent", "compares with 'absent'"),
        ("title: Two planners", "name: two", "must have title and about"),
        ("eval.episodes=3", "env.data=DATA/alfred", "give --data"),
        ("title: Generated houses,", "titel: Generated houses,", "must have a title, and may have world"),
        ("title: Generated houses, ", "", "must have a title, and may have world"),
        ("settings:", "commands:", "only rows or only settings"),
        ("seeds: [0, 1]", "seeds: 3", "a list of whole numbers"),
        ("seeds: [0, 1]", "seeds: []", "a list of whole numbers"),
        (f"against: expert\nrows:{ROWS}", "rows: [expert]\n", "rows must be a mapping by name"),
        (f"against: expert\nrows:{ROWS}", "rows:\n", "only rows or only settings"),
        ("{title: Generated houses, overrides: eval.episodes=3 eval.progress=false}", "x", "generated must have"),
        ("planner=random", "planner=random evl.seed=3", "there is no setting 'evl.seed'; did you mean 'eval.seed'"),
    ],
)
@pytest.mark.usefixtures("no_data")
def test_an_invalid_page_is_refused_before_the_first_run(page: Path, old: str, new: str, message: str) -> None:
    assert PAGE.count(old) >= 1
    page.write_text(PAGE.split("commands:")[0].replace(old, new))
    with pytest.raises(ConfigError, match=message):
        suite(page)
    assert not (page.parent / "runs").exists()


@pytest.fixture
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KEEP_AGENT_DATA", raising=False)


def test_a_command_that_fails_is_named_and_leaves_nothing(page: Path) -> None:
    page.write_text("title: t\nabout: a\ncommands:\n  Broken: eval.compare nowhere\n")
    with pytest.raises(KeepError, match=r"python -m eval.compare nowhere ended with 2: error: no run under nowhere"):
        suite(page)
    assert not list((page.parent / "runs").rglob("*.md"))


def test_a_page_may_use_the_rows_of_other_pages(page: Path) -> None:
    page.write_text("title: Elsewhere\nabout: Other houses.\nrows: methods keep_ratio\nsettings: {here: {title: Here}}")
    plan, *sources = read_page(str(page), None), read_page("methods", "/data"), read_page("keep_ratio", None)
    assert plan.rows == {**sources[0].rows, **sources[1].rows} and plan.against == sources[0].against
    page.write_text("title: Elsewhere\nabout: Other houses.\nrows: nothing\nsettings: {here: {title: Here}}")
    with pytest.raises(ConfigError, match="there is no page 'nothing'"):
        read_page(str(page), None)


@pytest.mark.parametrize("name", pages())
def test_every_page_of_the_package_has_known_settings(name: str, tmp_path: Path) -> None:
    page = read_page(name, "/data")
    check_page(page, tmp_path, [])
    assert page.runs() or page.commands


def test_an_unknown_page_lists_the_known_ones(call: Callable[..., tuple[int, str, str]]) -> None:
    assert_refused(call(main, "nothing", "--show", "eval.threads=1"), "there is no page 'nothing'; choose one of: ")
