"""Commands: output, files and exit codes."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest
import wandb

from eval import alfred, compare
from eval.workers import player
from keep_agent.config.model_names import expand_model
from keep_agent.errors import ConfigError
from keep_agent.guard import BAD_INPUT
from keep_agent.rollout.run_folder import EPISODES, SUMMARY, TRACE, find_runs
from keep_agent.rollout.trace import read_trace
from tests.envs.alfred.trials import usual, write
from tests.eval.workers.runs import Command, assert_refused, the_run
from tests.rewriting import change_object, keep_lines
from tests.waiting import until


def read(folder: Path, name: str = SUMMARY) -> dict:
    return json.loads((folder / name).read_text())


def test_a_run_prints_a_table_and_writes_its_folder(call: Command) -> None:
    code, out, _ = call(alfred.main, "planner=expert", "eval.episodes=3")
    assert code == 0
    folder = the_run()
    assert str(folder.name) in out and "success %" in out and "100.0" in out
    summary = read(folder)
    assert summary["success_rate"] == 1.0 and summary["path_weighted_success"] == 1.0 and summary["episodes"] == 3
    assert summary["config"]["planner"]["name"] == "expert" and summary["seed"] == 0 and "torch" in summary["versions"]
    assert len((folder / EPISODES).read_text().splitlines()) == 3
    assert sum(entry["event"] == "step" for entry in read_trace(folder / TRACE)) == summary["steps"]


def test_the_folder_of_a_run_is_printed_as_is(call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "[e]").mkdir()
    monkeypatch.chdir("[e]")
    code, out, _ = call(alfred.main, "planner=random", "eval.episodes=1")
    assert code == 0 and f"run folder: {tmp_path}/[e]/outputs/" in out


def test_several_planners_are_played_and_compared(call: Command) -> None:
    code, _, _ = call(alfred.main, "-m", "planner=random,expert", "eval.episodes=4", "env.stream=2")
    assert code == 0
    code, out, _ = call(compare.main, "outputs", "--baseline", "random", "--json", "table.json")
    assert code == 0 and "8 paired tasks" in out
    rows = {row["run"]: row for row in read(Path(), "table.json")["runs"]}
    assert rows["expert"]["success_difference"]["mean"] > 0.5 and rows["random"]["success_difference"] is None
    assert rows["expert"]["tasks"] == 8


def test_a_sweep_releases_each_model_before_the_next(call: Command, tiny_model: Path) -> None:
    before = set(threading.enumerate())
    setting = f"model={tiny_model}", "prompt.encoder=hashed", "eval.episodes=1", "env.max_steps=2", "eval.threads=1"
    assert call(alfred.main, "-m", "planner=keep,prefix_cache", *setting)[0] == 0
    assert len(find_runs(Path("outputs"))) == 2
    # The threads with which transformers reads weights are not joined, so they may end later.
    until(lambda: set(threading.enumerate()) <= before)


def test_the_same_command_gives_the_same_run(call: Command) -> None:
    for out in ("a", "b"):
        assert call(alfred.main, "planner=random", "eval.episodes=3", f"eval.out={out}", "env.skills=grounded")[0] == 0
    assert list(read_trace(the_run("a") / TRACE)) == list(read_trace(the_run("b") / TRACE))


@pytest.mark.usefixtures("garbage_stays")
def test_an_interrupted_run_is_resumed_to_the_same_end(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = "planner=random", "eval.episodes=5", "env.skills=grounded"
    call(alfred.main, *arguments, "eval.out=whole")
    commits: list[int] = []

    def interrupting(*arguments_: object, **keywords: object) -> object:
        if len(commits) == 2:
            raise KeyboardInterrupt
        commits.append(0)
        return play(*arguments_, **keywords)

    play = player.run_episode
    with monkeypatch.context() as patch:
        patch.setattr(player, "run_episode", interrupting)
        code, out, _ = call(alfred.main, *arguments, "eval.out=part")
    folder = the_run("part")
    assert code == 130 and f"eval.resume={folder.resolve()}" in out.replace("\n", "")
    assert not (folder / SUMMARY).exists()
    assert call(alfred.main, f"eval.resume={folder}")[0] == 0
    assert list(read_trace(folder / TRACE)) == list(read_trace(the_run("whole") / TRACE))
    assert read(folder)["steps"] == read(the_run("whole"))["steps"]
    assert not Path("outputs").exists()


def test_a_resumed_run_takes_the_same_settings_alone(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    call(alfred.main, "planner=random", "eval.episodes=2")
    folder, summary = the_run(), read(the_run())
    monkeypatch.setattr("eval.common.run.version", lambda name: "9.9")  # no episode is played with this version
    assert call(alfred.main, f"eval.resume={folder}", "planner=random", "eval.episodes=2")[0] == 0
    assert read(folder)["versions"] == summary["versions"]
    assert_refused(call(alfred.main, f"eval.resume={folder}", "env.skills=grounded"), "env.skills=grounded (was lota)")
    assert find_runs(Path("outputs")) == [folder]


def test_a_run_is_not_resumed_with_other_weights(call: Command, tiny_model: Path) -> None:
    setting = f"model={tiny_model}", "prompt.encoder=hashed", "eval.episodes=1", "env.max_steps=2", "eval.threads=1"
    call(alfred.main, "planner=keep", *setting)
    change_object(the_run() / "config.json", lambda config: config.update(weights=config["weights"][::-1]))
    assert_refused(call(alfred.main, f"eval.resume={the_run()}"), "other weights")


@pytest.mark.usefixtures("garbage_stays")
def test_a_run_is_not_resumed_with_another_number_of_episodes(call: Command) -> None:
    call(alfred.main, "planner=random", "eval.episodes=2")
    change_object(the_run() / "config.json", lambda config: config.update(episodes=3))
    text = "was started with 3 episodes, but the data now have 2; start a new run"
    assert_refused(call(alfred.main, f"eval.resume={the_run()}"), text)


def test_a_run_is_not_resumed_with_changed_data(call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of trials is the same, but the trials differ: indices alone would repeat some and omit others."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    a, b, c = usual()
    write(tmp_path / "before", "valid_seen", [a, b])
    setting = "planner=random", "env.split=valid_seen", "env.max_steps=2"
    assert call(alfred.main, *setting, f"env.data={tmp_path / 'before'}")[0] == 0
    run = the_run()
    keep_lines(run / EPISODES, 3)
    (run / SUMMARY).unlink()
    (tmp_path / "before").rename(tmp_path / "after")
    write(tmp_path / "before", "valid_seen", [a, c])
    text = "holds trial_b-0, which the data no longer hold at index 2; start a new run"
    assert_refused(call(alfred.main, f"eval.resume={run}"), text)


BAD = [
    (("planner=wizard",), ["wizard", "choose one of", "full_recompute"]),
    (("memory=wizard",), ["wizard", "choose one of", "keep"]),
    (("planner=expert", "env.split=wizard"), ["wizard", "train, valid, test"]),
    (("planner=expert", "env.data=/no/where", "env.split=valid_seen"), ["/no/where"]),
    (("planner=expert", "env.skills=wizard"), ["wizard", "lota, grounded"]),
    (("planner=random", "env.colour=red"), ["env.colour"]),
    (("planner=random", "eval.episodes=0"), ["eval.episodes=0"]),
    (("planner=random", "wandb.mode=wizard"), ["wizard", "offline"]),
    (("planner=keep", "model=/no/where"), ["/no/where"]),
    (("planner=keep", "model=qwen2.5-32b", "model.init=wizard"), ["wizard", "random"]),
    (("planner=random", "eval.resume=/no/where"), ["/no/where"]),
    (("planner=keep", "memory.recompute.schedule.average=7"), ["average=7", "use 0 to 1"]),
    (("planner=keep", "memory.grouping.bound=0"), ["bound=0", "at least 1"]),
    (("planner=keep", "memory.grouping.window=x"), ["memory.grouping.window=x", "whole number"]),
    (("planner=random", "eval.episodes=x"), ["eval.episodes=x", "whole number"]),
    (("planner=random", "eval.seed=-1"), ["eval.seed=-1", "from 0"]),
    (("planner=random", "eval.threads=0"), ["eval.threads=0", "or null"]),
    (("planner=random", "eval.trace=perhaps"), ["eval.trace=perhaps", "true or false"]),
    (("planner=random", "eval.frames=gif"), ["eval.frames='gif'", "jpeg, png, null"]),
    (("planner=random", "eval.frames=true"), ["eval.frames=True", "jpeg, png, null"]),
    (("planner=random", "env.stream=two"), ["env.stream=two", "whole number"]),
    (("planner=random", "env.id=Wizard-v0"), ["Wizard-v0", "keep_agent:Alfred-v0"]),
    (("planner=random", "prompt.examples=-1"), ["prompt.examples=-1", "from 0"]),
    (("planner=keep", "model.device=wizard"), ["model.device=wizard", "cpu"]),
    (("planner=random", "eval.out=/proc/no"), ["/proc/no", "can be written"]),
    (("planner=random", f"eval.out={300 * 'x'}"), ["File name too long", "can be written"]),
    (("planner=random", "eval.out=\\${x}"), ["${", "Hydra cannot write"]),
]


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_bad_input_is_one_line_and_nothing_on_disk(call: Command, arguments: tuple[str, ...], words: list[str]) -> None:
    assert_refused(call(alfred.main, *arguments), *words)
    assert not Path("outputs").exists()


def test_existing_folders_are_not_removed(call: Command, tmp_path: Path) -> None:
    for flags in ((), ("-m",)):
        assert call(alfred.main, *flags, "planner=random", "env.split=wizard")[0] == BAD_INPUT
        assert tmp_path.is_dir() and not list(tmp_path.iterdir())
    existing = tmp_path / "existing"
    existing.mkdir()
    for out in ("existing", "existing/a/b"):
        assert call(alfred.main, "planner=random", "env.split=wizard", f"eval.out={out}")[0] == BAD_INPUT
        assert existing.is_dir() and not list(existing.iterdir())


def test_a_log_that_cannot_start_leaves_no_folder(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**settings: object) -> None:
        raise wandb.Error("no API key")

    monkeypatch.setattr(wandb, "init", refuse)
    online = call(alfred.main, "planner=random", "wandb.mode=online", "eval.episodes=1")
    assert_refused(online, "no API key", "wandb.mode=offline")
    assert not Path("outputs").exists()


def test_a_truncated_trajectory_is_named(call: Command, tmp_path: Path) -> None:
    file = tmp_path / "data" / "valid_seen" / "task" / "trial" / "traj_data.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"task_id": "trial", "scene": {"floor')
    run = call(alfred.main, "planner=expert", f"env.data={tmp_path / 'data'}", "env.split=valid_seen")
    assert_refused(run, str(file), "truncated", "restore it")
    assert not Path("outputs").exists()


def test_corrupt_weights_are_named(call: Command, tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    run = call(alfred.main, "planner=keep", f"model={folder}", "prompt.encoder=hashed")
    assert_refused(run, str(weights), "corrupt")
    assert not Path("outputs").exists()


def test_a_model_that_does_not_fit_is_refused_with_numbers(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memory.engine.models.capacity.available_bytes", lambda device: 8 << 30)
    large = "model=qwen2.5-14b", "model.init=random", "model.device=cpu"
    assert_refused(call(alfred.main, "planner=keep", *large), "qwen2.5-14b", "8.0 GiB free", "smaller model")
    assert not Path("outputs").exists()


def test_a_sweep_keeps_only_its_valid_runs(call: Command) -> None:
    code, _, err = call(alfred.main, "-m", "planner=random,expert", "env.split=wizard")
    assert code == BAD_INPUT and err.count("error: ") == 2 and not Path("outputs").exists()
    code, _, err = call(alfred.main, "-m", "planner=random", "env.split=wizard,test", "eval.episodes=1")
    assert code == BAD_INPUT and err.count("error: ") == 1 and len(find_runs(Path("outputs"))) == 1


def test_a_run_in_which_all_episodes_crash_is_an_error(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("no hands")

    monkeypatch.setattr("planners.base.RandomPlanner.decide", broken)
    code, _, err = call(alfred.main, "planner=random", "eval.episodes=2")
    assert code == BAD_INPUT and "all 2 episodes crashed" in err and "no hands" in err
    assert read(the_run())["crashed"] == 2


def test_runs_without_common_episodes_are_not_compared(call: Command) -> None:
    call(alfred.main, "planner=random", "eval.episodes=1", "eval.out=a")
    call(alfred.main, "planner=random", "eval.episodes=1", "eval.seed=3", "eval.out=b")
    assert_refused(call(compare.main, "a", "b"), "no episode in common")
    assert_refused(call(compare.main, "a", "--baseline", "wizard"), "'wizard'", "random")


def test_a_model_is_chosen_by_one_override() -> None:
    for override in ("model=planner-tiny", "model.init=random"):
        assert expand_model([override]) == [override]
    name = "Qwen/Qwen2.5-14B-Instruct"
    assert expand_model([f"model={name}"]) == ["model=custom", f"model.name='{name}'"]
    assert expand_model(["model=/a,/b"]) == ["model=custom", "model.name='/a','/b'"]
    with pytest.raises(ConfigError, match="two commands"):
        expand_model(["model=planner-tiny,/a"])
