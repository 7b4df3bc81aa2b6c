"""Whole pages: what is finished stays, what was begun goes on, and the page says how it was made."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from eval.suite.__main__ import main, parser, run
from eval.suite.plan import pages, read_page
from eval.suite.play import check
from keep_agent.errors import ConfigError, KeepError
from keep_agent.rollout.run_folder import CONFIG, EPISODES, SUMMARY, TRACE
from planners.base import Decision
from planners.baselines import RandomPlanner
from tests.rewriting import change_object, keep_lines

PAGE = """
title: Two planners
about: What a page is about.
against: expert
rows:
  expert: planner=expert
  random: planner=random
settings:
  generated: {title: Generated houses, overrides: eval.episodes=3 eval.progress=false}
  seeds: {title: Of several seeds, overrides: [eval.episodes=2, eval.progress=false, env.stream=2], seeds: [0, 1]}
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


def test_a_page_has_every_row_in_every_setting_beside_the_one_it_is_compared_with(page: Path) -> None:
    suite(page)
    text = (page.parent / "pages" / "two.md").read_text()
    assert text.startswith(f"# Two planners\n\nWhat a page is about.\n\n```sh\npython -m eval.suite {page}\n```")
    assert "## Generated houses" in text and "3 tasks, paired with `expert`" in text
    assert "8 tasks, paired with `expert`" in text  # two streams of two, of either seed
    for row in ("| `expert` | 100.0 [", "| `random` | 0.0 [0.0, "):
        assert text.count(row) == 2, text
    assert "## How loading hides\n\n```sh\npython -m eval.pipeline --layers 4 --markdown\n```" in text
    assert "layer_balanced" in text.split("## How loading hides")[1]


def test_what_is_finished_stays_and_what_was_begun_goes_on(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite(page)
    cell = page.parent / "runs" / "two" / "generated" / "random"
    summary, lines = (cell / SUMMARY).read_text(), (cell / EPISODES).read_text().splitlines()
    others = {file: file.stat().st_mtime_ns for file in page.parent.rglob(SUMMARY) if file.parent != cell}
    first = (page.parent / "pages" / "two.md").read_text()
    (cell / SUMMARY).unlink()
    keep_lines(cell / EPISODES, 1)
    suite(page, "--show")
    assert "random" not in (page.parent / "pages" / "two.md").read_text().split("## Of several seeds")[0]
    suite(page)
    assert json.loads((cell / SUMMARY).read_text())["tasks"] == json.loads(summary)["tasks"]
    assert (cell / EPISODES).read_text().splitlines()[0] == lines[0]
    assert {file: file.stat().st_mtime_ns for file in others} == others
    assert (page.parent / "pages" / "two.md").read_text() == first


def test_a_row_that_was_cut_short_before_its_first_episode_is_played_in_its_place(page: Path) -> None:
    page.write_text(PAGE.split("commands:")[0])
    suite(page)
    cell = page.parent / "runs" / "two" / "generated" / "random"
    first = (page.parent / "pages" / "two.md").read_text()
    for name in (SUMMARY, TRACE):
        (cell / name).unlink()
    keep_lines(cell / EPISODES, 0)
    suite(page)
    assert (cell / SUMMARY).exists() and not cell.with_name("random-2").exists()
    assert (page.parent / "pages" / "two.md").read_text() == first


@pytest.mark.parametrize("more", [(), ("--show",)])
def test_a_finished_run_of_other_settings_is_refused(page: Path, more: Sequence[str]) -> None:
    page.write_text(PAGE.split("commands:")[0])
    suite(page, "eval.episodes=1")
    suite(page, "eval.episodes=1", "eval.progress=true")  # who plays and shows what is free
    with pytest.raises(ConfigError, match=r"generated/expert was run otherwise: eval.episodes=3 \(was 1\); delete it"):
        suite(page, *more)
    page.write_text(page.read_text().replace("planner=random", "planner=random planner.name=wild"))
    with pytest.raises(ConfigError, match=r"generated/random was run otherwise: planner.name=wild \(was random\)"):
        suite(page, "eval.episodes=1", *more)


@pytest.mark.parametrize(
    "override",
    ["eval.seed=7", "eval.out=elsewhere", "eval.resume=elsewhere", "eval.shard=1/2", "planner=expert", "memory=keep"],
)
def test_what_each_run_has_of_its_own_is_given_to_none(page: Path, override: str) -> None:
    """A seed for all would play the tasks of one seed twice, and count them so; a planner all rows as the same."""
    with pytest.raises(ConfigError, match=rf"{override} cannot count for every run of two"):
        suite(page, override)
    assert not (page.parent / "runs").exists()


def test_what_tells_rows_apart_is_given_to_none(page: Path) -> None:
    rows = "planner=keep memory.recompute.schedule.average=0.1 model=planner-tiny"
    page.write_text(PAGE.replace("planner=random", rows).split("  seeds:")[0])
    found = read_page(str(page), None)
    for override in (
        "memory.recompute.schedule.average=0.2",
        "memory.recompute.schedule={shape: once, average: 0.2}",
        "memory/recompute=none",
        "model.name=planner-tiny",
    ):
        with pytest.raises(ConfigError, match="cannot count for every run of two"):
            check(found, page.parent / "runs", [override])
    check(found, page.parent / "runs", ["eval.workers=2"])


def test_a_run_that_crashed_throughout_is_no_result(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page.write_text(PAGE.split("  seeds:")[0])

    def fail(*_: object) -> None:
        raise RuntimeError("no skill")

    monkeypatch.setattr(RandomPlanner, "decide", fail)
    for _ in range(2):  # neither now nor when the same command goes on
        with pytest.raises(KeepError, match=r"all 3 episodes.* crashed"):
            suite(page)
    assert not (page.parent / "pages").exists()


def test_crashes_are_told_beside_the_table(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page.write_text(PAGE.split("  seeds:")[0].replace("random:", "Random_1:"))
    real, asked = RandomPlanner.decide, itertools.count()

    def fail_once(self: RandomPlanner, *given: Any) -> Decision:
        if next(asked) == 0:
            raise RuntimeError("no skill")
        return real(self, *given)

    monkeypatch.setattr(RandomPlanner, "decide", fail_once)
    suite(page)
    text = (page.parent / "pages" / "two.md").read_text()
    assert "Crashed, which counts as failed: `Random_1` in 1 of 3 episodes." in text


def test_a_begun_run_of_other_settings_is_refused_too(page: Path) -> None:
    page.write_text(PAGE.split("commands:")[0])
    suite(page)
    (page.parent / "runs" / "two" / "generated" / "random" / SUMMARY).unlink()
    page.write_text(page.read_text().replace("planner=random", "planner=random planner.name=wild"))
    with pytest.raises(ConfigError, match=r"generated/random was run otherwise: planner.name=wild \(was random\)"):
        suite(page)


def test_seeds_of_other_weights_are_not_mixed(page: Path) -> None:
    page.write_text(PAGE.split("commands:")[0])
    suite(page)
    for seed in (0, 1):
        file = page.parent / "runs" / "two" / "seeds" / f"random-seed{seed}" / CONFIG
        change_object(file, lambda config, weights=f"{seed}" * 64: config.update(weights=weights))
    with pytest.raises(ConfigError, match="the seeds of random were played with other weights each"):
        suite(page, "--show")


@pytest.mark.parametrize(
    ("there", "instead", "sentence"),
    [
        (
            "rows:\n  expert: planner=expert\n  random: planner=random\n",
            "rows: [expert]\n",
            "rows must give each a name",
        ),
        (
            "{title: Generated houses, overrides: eval.episodes=3 eval.progress=false}",
            "Generated houses",
            "setting generated has",
        ),
        ("seeds: [0, 1]", "seeds: 3", "a list of whole numbers"),
        ("seeds: [0, 1]", "seeds: []", "a list of whole numbers"),
        ("rows:\n  expert: planner=expert\n  random: planner=random\n", "rows:\n", "rows or settings alone"),
    ],
)
def test_a_page_of_another_shape_is_a_sentence(page: Path, there: str, instead: str, sentence: str) -> None:
    text = PAGE.replace("against: expert\n", "").replace(there, instead)
    assert text.count(instead) == 1
    page.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        suite(page)


def test_rows_may_be_called_by_numbers(page: Path) -> None:
    page.write_text(PAGE.replace("against: expert\n", "").replace("  expert:", "  0.5:"))
    assert list(read_page(str(page), None).rows) == ["0.5", "random"]


def test_what_a_command_printed_counts_for_these_words_and_these_runs(page: Path) -> None:
    page.write_text(PAGE.split("commands:")[0] + "commands:\n  Told: eval.compare RUNS/generated --markdown\n")
    suite(page)
    text = (page.parent / "pages" / "two.md").read_text()
    assert "| expert |" in text.split("## Told")[1]
    page.write_text(page.read_text().replace(" --markdown", " --markdown --baseline random"))
    suite(page, "--show")
    assert "## Told" not in (page.parent / "pages" / "two.md").read_text()
    suite(page)
    assert "--baseline random" in (page.parent / "pages" / "two.md").read_text().split("## Told")[1]
    (file,) = (page.parent / "runs").rglob("told.md")
    os.utime(file, (0, 0))  # older than the runs that it read
    suite(page, "--show")
    assert "## Told" not in (page.parent / "pages" / "two.md").read_text()


def test_a_page_of_ones_own_is_not_called_as_one_of_the_package(page: Path) -> None:
    with pytest.raises(ConfigError, match=r"methods.yaml is called as a page of the package; rename it"):
        suite(page.rename(page.with_name("methods.yaml")))


def test_where_data_is_stands_in_no_other_word(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(page.parent)
    assert parser().parse_args(["two.yaml", "--data", "data"]).data == str(page.parent / "data")


def test_overrides_of_the_command_line_count_for_all(page: Path) -> None:
    page.write_text(PAGE.split("commands:")[0])
    suite(page, "eval.episodes=1", "env.skills=grounded")
    configs = [json.loads(file.read_text())["config"] for file in page.parent.rglob(SUMMARY)]
    assert len(configs) == 6 and {c["env"]["skills"] for c in configs} == {"grounded"}
    assert f"eval.suite {page} eval.episodes=1 env.skills=grounded" in (page.parent / "pages" / "two.md").read_text()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("against: expert", "against: nobody", "compares with 'nobody'"),
        ("title: Two planners", "name: two", "must have a title"),
        ("eval.episodes=3", "env.data=DATA/alfred", "give --data"),
        ("title: Generated houses,", "titel: Generated houses,", "has a title, and may have world"),
        ("title: Generated houses, ", "", "has a title, and may have world"),
        ("settings:", "commands:", "rows or settings alone"),
    ],
)
def test_a_page_that_cannot_be_made_is_refused_before_anything_is_played(
    page: Path, old: str, new: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KEEP_AGENT_DATA", raising=False)
    page.write_text(PAGE.split("commands:")[0].replace(old, new))
    with pytest.raises(ConfigError, match=said):
        suite(page)
    assert not (page.parent / "runs").exists()


def test_a_command_that_fails_is_named_and_leaves_nothing(page: Path) -> None:
    page.write_text("title: t\nabout: a\ncommands:\n  Broken: eval.compare nowhere\n")
    with pytest.raises(KeepError, match=r"python -m eval.compare nowhere ended with 2: error: no run under nowhere"):
        suite(page)
    assert not list((page.parent / "runs").rglob("*.md"))


def test_a_page_may_have_the_rows_of_others(page: Path) -> None:
    page.write_text("title: Elsewhere\nabout: Other houses.\nrows: methods keep_ratio\nsettings: {here: {title: Here}}")
    found, *others = read_page(str(page), None), read_page("methods", "/data"), read_page("keep_ratio", None)
    assert found.rows == {**others[0].rows, **others[1].rows} and found.against == others[0].against
    page.write_text("title: Elsewhere\nabout: Other houses.\nrows: nothing\nsettings: {here: {title: Here}}")
    with pytest.raises(ConfigError, match="there is no page 'nothing'"):
        read_page(str(page), None)


@pytest.mark.parametrize("name", pages())
def test_every_page_of_the_package_gives_settings_there_are(name: str, tmp_path: Path) -> None:
    page = read_page(name, "/data")
    check(page, tmp_path, [])
    assert page.cells() or page.commands


def test_a_mistyped_row_is_refused_before_the_first_is_played(page: Path) -> None:
    page.write_text(PAGE.replace("random: planner=random", "random: planner=random evl.seed=3"))
    with pytest.raises(ConfigError, match=r"evl.seed=3: there is no setting 'evl.seed'; did you mean 'eval.seed'"):
        suite(page)
    assert not (page.parent / "runs").exists()


def test_unknown_pages_are_answered_with_those_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["keep-eval-suite", "nothing", "--show", "eval.threads=1"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and "there is no page 'nothing'; choose one of: " in capsys.readouterr().err
