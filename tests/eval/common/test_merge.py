"""Shards: each episode belongs to one of them, and merged shards equal the run of one machine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval import alfred, merge
from eval.common.run import Shard
from keep_agent.errors import ConfigError
from keep_agent.guard import BAD_INPUT
from keep_agent.rollout.run_folder import CONFIG, EPISODES, SUMMARY, TRACE, read_config
from keep_agent.rollout.trace import read_trace
from tests.eval.workers.runs import Command, assert_done, assert_refused, assert_same, pictures, the_run
from tests.rewriting import as_of_version_0_2, change_object, keep_lines

SETTING = ("planner=expert", "eval.episodes=7")


@given(st.integers(1, 200), st.integers(1, 20))
def test_shards_share_the_episodes_evenly(episodes: int, of: int) -> None:
    shares = [list(Shard(number, of).indices(episodes)) for number in range(min(of, episodes))]
    assert sorted(index for share in shares for index in share) == list(range(episodes))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("text", ["4/4", "-1/4", "0/0", "x", "1/", "1/2/3", "1.0/2", 3, "²/4"])
def test_an_invalid_shard_is_refused(text: Any) -> None:
    with pytest.raises(ConfigError, match=f"eval.shard={text} does not work; give i/n"):
        Shard.parse(text)


def test_a_shard_without_episodes_is_refused(call: Command) -> None:
    assert_refused(call(alfred.main, *SETTING, "eval.shard=7/8"), "use 7 shards at most")
    assert not Path("outputs").exists()


def play(call: Command, of: int, *setting: str, whole: str = "whole") -> list[str]:
    """Play one run and its shards; return the shards' folders."""
    assert_done(call(alfred.main, *setting, f"eval.out={whole}"))
    for number in range(of):
        code, out, _ = call(alfred.main, *setting, f"eval.shard={number}/{of}", f"eval.out=shards/{number}")
        assert code == 0 and f"shard {number}/{of}" in out
    return [str(the_run(f"shards/{number}")) for number in range(of)]


def test_merged_shards_equal_the_run(call: Command) -> None:
    shards = play(call, 3, *SETTING, "env.stream=2")
    code, out, _ = call(merge.main, *reversed(shards), "--out", "new/merged")
    assert code == 0 and f"run folder: {Path('new/merged').resolve()}" in out and ", shard" not in out
    merged, whole = Path("new/merged"), the_run("whole")
    assert_same(merged, whole)
    assert list(read_trace(merged / TRACE)) == list(read_trace(whole / TRACE))  # in the same order
    configs = [read_config(run) for run in (merged, whole)]
    for config in configs:
        del config["eval"]["out"]
    assert configs[0] == configs[1]
    assert sorted(path.name for path in Path("new").iterdir()) == ["merged"]
    assert_done(call(alfred.main, "eval.resume=new/merged"))  # resumed as an ordinary run


def test_a_folder_of_shards_is_merged(call: Command) -> None:
    play(call, 2, *SETTING)
    assert_done(call(merge.main, "shards", "--out", "merged"))
    assert_same(Path("merged"), the_run("whole"))


def test_shards_with_a_model_and_pictures_are_merged(call: Command, tiny_model: Path) -> None:
    model = f"model={tiny_model}", "prompt.encoder=hashed", "eval.threads=1"
    thor = "env.backend=thor", "env.render=rgb", "env.max_steps=3", "eval.episodes=2"
    play(call, 2, "planner=keep", *model, *thor)
    assert_done(call(merge.main, "shards", "--out", "merged"))
    assert_same(Path("merged"), the_run("whole"))
    assert len(pictures(Path("merged"))) > 2


def test_a_shard_is_resumed_as_the_same_shard(call: Command) -> None:
    play(call, 2, *SETTING)
    first, second = (the_run(f"shards/{number}") for number in range(2))
    (first / SUMMARY).unlink()
    keep_lines(first / EPISODES, 2)
    code, _, err = call(merge.main, str(first), str(second), "--out", "merged")
    assert code == BAD_INPUT and "shard 0/2, lacks episodes 4, 6" in err and f"eval.resume={first.resolve()}" in err
    assert_refused(call(alfred.main, f"eval.resume={first}", "eval.shard=1/2"), "eval.shard=1/2 (was 0/2)")
    assert_done(call(alfred.main, f"eval.resume={first}"))
    assert_done(call(merge.main, str(first), str(second), "--out", "merged"))
    assert_same(Path("merged"), the_run("whole"))


def test_shards_without_a_trace_are_merged_without_one(call: Command) -> None:
    play(call, 2, *SETTING, "eval.trace=false")
    assert_done(call(merge.main, "shards", "--out", "merged"))
    assert sorted(path.name for path in Path("merged").iterdir()) == [CONFIG, "episodes.end", EPISODES, SUMMARY]


def copy_shard(run: Path) -> None:
    shutil.copytree(run, run.with_name("copy"))


def renumber(run: Path, index: int) -> None:
    """Change the index in the last line of a run's episodes."""
    as_of_version_0_2(run)
    *rest, last = (run / EPISODES).read_text().splitlines()
    lines = [*rest, json.dumps(json.loads(last) | {"index": index})]
    (run / EPISODES).write_text("".join(f"{line}\n" for line in lines))


def repeat_last(run: Path) -> None:
    as_of_version_0_2(run)
    with (run / EPISODES).open("a") as stream:
        stream.write((run / EPISODES).read_text().splitlines(keepends=True)[-1])


def edit(name: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    return lambda run: change_object(run / name, change)


DAMAGE = [
    (lambda run: shutil.rmtree(run), ["shards are missing: 1/3"]),
    (copy_shard, ["given twice: 1/3", "copy", "leave out all but one"]),
    (lambda run: (run / SUMMARY).unlink(), ["shard 1/3, is not finished", "eval.resume="]),
    (lambda run: renumber(run, 1), ["lacks episode 4"]),
    (repeat_last, ["has episode 4 twice"]),
    (edit(CONFIG, lambda c: c.update(weights="x")), ["another run", "weights=x (was None)"]),
    (edit(CONFIG, lambda c: c["env"].update(skills="g")), ["another run", "env.skills=g (was lota)"]),
    (edit(CONFIG, lambda c: c["eval"].update(shard=None)), ["is not a shard"]),
    (edit(CONFIG, lambda c: c["eval"].update(shard="1/2")), ["lacks episodes 3, 5"]),
    (edit(CONFIG, lambda c: c.update(episodes=8)), ["lacks episode 7"]),
    (edit(SUMMARY, lambda c: c.update(steps=1)), ["steps", "has changed"]),
    (edit(SUMMARY, lambda c: c.pop("steps")), ["summary.json is not a summary", "'steps'"]),
    (edit(SUMMARY, lambda c: c.update(versions=3)), ["summary.json is not a summary"]),
    (edit(CONFIG, lambda c: c.pop("eval")), ["config.json: there is no eval.seed"]),
    (edit(CONFIG, lambda c: c.update(planner=3)), ["there is no planner.kind"]),
    (edit(CONFIG, lambda c: c.update(episodes="x")), ["is not a config of a shard"]),
    (lambda run: (run / SUMMARY).write_text("{"), ["summary.json is not JSON"]),
    (lambda run: (run / TRACE).write_text("x\n"), ["trace.jsonl:1 is damaged"]),
    (lambda run: (run / TRACE).unlink(), ["trace.jsonl has 0 whole lines"]),
]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Play three shards of a run of seven episodes."""
    from hydra import compose, initialize_config_module

    from eval.common.run import evaluate
    from keep_agent.console import make_console

    folder = tmp_path_factory.mktemp("three")
    with initialize_config_module("configs", version_base="1.3"):
        for number in range(3):
            config = compose("alfred", [*SETTING, f"eval.shard={number}/3", f"eval.out={folder}"])
            evaluate(config, folder / str(number), make_console())
    return folder


@pytest.fixture
def copied(shards: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(shards, tmp_path / "shards"))


@pytest.mark.parametrize(("damage", "words"), DAMAGE, ids=[words[0] for _, words in DAMAGE])
def test_damaged_shards_are_not_merged(
    call: Command, copied: Path, damage: Callable[[Path], None], words: list
) -> None:
    damage(copied / "1")
    assert_refused(call(merge.main, "shards", "--out", "merged"), *words)
    assert [path.name for path in copied.parent.iterdir()] == ["shards"]


def test_an_episode_of_another_shard_is_refused(call: Command, copied: Path) -> None:
    for number in (1, 2):
        as_of_version_0_2(copied / f"{number}")
    for file in (EPISODES, TRACE):
        with (copied / "1" / file).open("a") as stream:
            stream.write((copied / "2" / file).read_text())
    assert_refused(call(merge.main, "shards", "--out", "merged"), "shard 1/3, has episodes 2, 5 of other shards")


def test_an_episode_with_two_indices_is_refused(call: Command, copied: Path) -> None:
    as_of_version_0_2(copied / "1")
    first = json.loads((copied / "2" / EPISODES).read_text().splitlines()[0])
    del first["sum"], first["trace"]
    file = copied / "1" / EPISODES
    _, second = file.read_text().splitlines()
    file.write_text(json.dumps(first | {"index": 1}) + f"\n{second}\n")
    assert_refused(call(merge.main, "shards", "--out", "merged"), f"several shards have played {first['id']}")


def test_an_existing_run_is_not_overwritten(call: Command, shards: Path, tmp_path: Path) -> None:
    (tmp_path / "merged").mkdir()
    assert_done(call(merge.main, str(shards), "--out", "merged"))  # an empty folder is no run
    assert_refused(call(merge.main, str(shards), "--out", "merged"), "merged already exists")


def test_differing_versions_are_all_named(call: Command, copied: Path) -> None:
    change_object(copied / "1" / SUMMARY, lambda summary: summary["versions"].update(torch="0.1"))
    assert_done(call(merge.main, "shards", "--out", "merged"))
    assert json.loads(Path("merged", SUMMARY).read_text())["versions"]["torch"].startswith("0.1, ")
