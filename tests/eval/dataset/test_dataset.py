"""Rollouts of the expert: files can be replayed, perturbed steps keep the expert's label, files are written once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from envs.alfred.setting import MAX_STEPS
from envs.alfred.spec import load_episodes
from envs.worlds import WORLDS
from eval.dataset import __main__ as dataset
from eval.dataset.recorder import HouseEpisodes, RolloutRecorder
from keep_agent.errors import ConfigError, DataError, ModelError
from planners.base import DONE, Decision, ExpertPlanner
from planners.training.rollout_files import Rollout, read_rollouts, write_rollouts
from tests.envs.alfred import trials
from tests.eval.workers.runs import assert_refused


def write(out: Path, *arguments: str) -> list[Rollout]:
    dataset.run(dataset.parser().parse_args(["--out", str(out), *arguments]))
    return [rollout for path in sorted(out.glob("*.jsonl.gz")) for rollout in read_rollouts(path)]


def test_both_settings_of_the_same_houses_are_written_and_solved(tmp_path: Path) -> None:
    rollouts = write(tmp_path, "--houses", "30", "--perturb", "0")
    assert len(list(tmp_path.glob("*.jsonl.gz"))) == 2
    by_setting = {(r.skills, r.observability): [] for r in rollouts}
    for rollout in rollouts:
        by_setting[rollout.skills, rollout.observability].append(rollout.source)
    assert set(by_setting) == {("lota", "full"), ("grounded", "partial")}
    first, second = by_setting.values()
    assert sorted(first) == sorted(second) and len(first) == len(set(first)) >= 25
    assert {len(rollout.tasks) for rollout in rollouts} == {1, 2, 3, 4}
    for task in (task for rollout in rollouts for task in rollout.tasks):
        assert task.success and task.steps[-1].skill == "done" and len(task.steps) <= max(MAX_STEPS.values())
        assert all(step.skill == step.label for step in task.steps)
        assert len(set(task.instructions)) == len(task.instructions) >= 1
    assert any(len(task.instructions) > 1 for rollout in rollouts for task in rollout.tasks)


class RecordingPlanner(ExpertPlanner):
    """Planner that chooses the first admissible skill and records its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def decide(self, admissible: Sequence[str], info: Mapping[str, Any]) -> Decision:
        self.calls.append("decide")
        return Decision(admissible[0])

    def feedback(self, skill: str, ok: bool, message: str) -> None:
        self.calls.append("done" if skill == DONE else "feedback")


def test_an_acting_planner_decides_before_every_step() -> None:
    planner, alfred = RecordingPlanner(), WORLDS["alfred"].spec
    recorder = RolloutRecorder("grounded", "partial", 0.0, 1, planner)
    (episode,) = alfred.training(None, stream=2, limit=1)
    rollout = recorder.rollout(HouseEpisodes(alfred, [episode]))
    decisions, outcomes = planner.calls[::2], planner.calls[1::2]
    steps = sum(len(task.steps) for task in rollout.tasks)
    assert set(decisions) == {"decide"} and len(decisions) == len(outcomes) == steps
    assert outcomes.count("done") == sum(task.steps[-1].skill == DONE for task in rollout.tasks) == 2


@pytest.mark.parametrize("messages", ["reasons", "lota"])
def test_a_failure_is_written_with_any_message(messages: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wah = WORLDS["wah"].spec
    setting = wah.setting(messages=messages)
    monkeypatch.setattr(type(wah), "play_setting", lambda *arguments: setting)
    source = HouseEpisodes(wah, wah.training(None, limit=1))
    file = tmp_path / "rollouts.jsonl.gz"
    write_rollouts(file, [RolloutRecorder("lota", "full", 1.0, seed).rollout(source) for seed in range(4)])
    steps = [step for r in read_rollouts(file) for task in r.tasks for step in task.steps]
    failed = [step for step in steps if not step.ok]
    assert failed and {bool(step.message) for step in failed} == {messages == "reasons"}
    assert all("failed" in step.turn.text for step in failed)


def test_every_house_may_hold_a_long_stream(tmp_path: Path) -> None:
    rollouts = write(tmp_path, "--worlds", "alfred", "--houses", "3", "--stream", "7", "--settings", "grounded+partial")
    assert [len(rollout.tasks) for rollout in rollouts] == [7, 7, 7]
    assert json.loads((tmp_path / "rollouts.json").read_text())["stream"] == 7


def test_no_house_of_the_other_splits_is_among_them(tmp_path: Path) -> None:
    sources = {rollout.source for rollout in write(tmp_path, "--houses", "20", "--settings", "lota+full")}
    for split in ("valid", "test"):
        assert not sources & {episode.id for episode in load_episodes(None, split, limit=50)}


def test_perturbed_steps_are_random_and_their_label_is_the_experts(tmp_path: Path) -> None:
    rollouts = write(tmp_path, "--houses", "40", "--perturb", "0.5", "--settings", "grounded+partial")
    steps = [step for rollout in rollouts for task in rollout.tasks for step in task.steps]
    strayed = [step for step in steps if step.skill != step.label]
    assert 0.1 < len(strayed) / len(steps) < 0.4
    assert "done" not in {step.skill for step in strayed}
    assert any(task.success for r in rollouts for task in r.tasks if any(s.skill != s.label for s in task.steps))


def test_a_written_file_stays_and_the_same_seed_writes_the_same(tmp_path: Path) -> None:
    arguments = "--houses", "12", "--settings", "lota+full"
    first = write(tmp_path / "a", *arguments)
    (file,) = (tmp_path / "a").glob("*.jsonl.gz")
    stamp = file.stat().st_mtime_ns
    assert write(tmp_path / "a", *arguments) == first and file.stat().st_mtime_ns == stamp
    assert write(tmp_path / "b", *arguments) == first
    assert write(tmp_path / "c", *arguments, "--first", "12") != first


def test_trials_are_drawn_from_data_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--trials 5 draws official trials; give their folder with --data"):
        write(tmp_path / "a", "--trials", "5")
    assert not (tmp_path / "a").exists()


def test_settings_are_recorded_and_not_mixed(tmp_path: Path) -> None:
    write(tmp_path, "--houses", "6", "--settings", "lota+full", "--seed", "4")
    settings = json.loads((tmp_path / "rollouts.json").read_text())
    assert "stream" not in settings  # as it was before there was such a setting
    assert settings.items() >= {"houses": 6, "seed": 4, "official": False}.items()
    assert settings["settings"] == ["lota+full"]
    with pytest.raises(ConfigError, match=r"seed=5 \(was 4\); choose another --name or --out"):
        write(tmp_path, "--houses", "6", "--settings", "lota+full", "--seed", "5")
    write(tmp_path / "both", "--houses", "2", "--settings", "lota+full", "--worlds", "alfred", "wah")
    with pytest.raises(ConfigError, match=r"settings: worlds=None \(was \['alfred', 'wah'\]\); choose"):
        write(tmp_path / "both", "--houses", "2", "--settings", "lota+full", "--worlds", "alfred")
    (tmp_path / "rollouts.json").write_text("{")
    with pytest.raises(DataError, match=r"rollouts.json is not JSON .*; choose another"):
        write(tmp_path, "--houses", "6", "--settings", "lota+full", "--seed", "4")


@pytest.mark.parametrize("wrong", [("planer=keep",), ("planner=expert",), ("planner=keep", "model=./nowhere")])
def test_a_planner_that_is_refused_leaves_nothing(wrong: tuple[str, ...], tmp_path: Path) -> None:
    """Otherwise the corrected command would be refused because of other settings."""
    with pytest.raises(ConfigError):
        write(tmp_path / "out", "--houses", "1", "--acting", *wrong)
    assert not (tmp_path / "out").exists()


def test_a_planner_that_cannot_be_loaded_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(ModelError):
        write(tmp_path / "out", "--houses", "1", "--acting", "planner=keep", f"model={tmp_path / 'model'}")
    assert not (tmp_path / "out").exists()


def test_more_houses_than_one_seed_offers(tmp_path: Path) -> None:
    rollouts = write(tmp_path, "--houses", "10", "--first", "16000", "--settings", "lota+full")
    assert len(rollouts) >= 7


def test_official_trials_bring_all_their_annotations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    trials.write(tmp_path / "data", "train", trials.usual())
    few = "--houses", "0", "--trials", "1", "--settings", "lota+full"
    (rollout,) = write(tmp_path / "out", "--data", str(tmp_path / "data"), *few)
    assert len(rollout.tasks) == 1 and len(rollout.tasks[0].instructions) > 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--settings", "lota"), ["--settings lota", "grounded+partial"]),
        (("--settings", "lota+half"), ["lota+half"]),
        (("--data", "/no/where"), ["/no/where"]),
        (("--perturb", "7"), ["--perturb 7", "0 to 1"]),
        (("--trials", "-1"), ["--trials -1", "0 or more"]),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], words: list[str], call: Callable[..., Any]) -> None:
    assert_refused(call(dataset.main, "--out", "out", "--houses", "1", *arguments), *words)
    assert not Path("out").exists()
