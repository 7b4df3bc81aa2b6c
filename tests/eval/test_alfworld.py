"""Commands ``eval.games`` and ``eval.alfworld``: the same houses in ALFWorld's engine and the embedded one."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envs.alfred.spec import load_episodes
from envs.alfworld.spec import FILE_NAME
from eval import alfred, alfworld, compare, games
from eval.games import unsupported_reason
from keep_agent.errors import ConfigError
from keep_agent.guard import BAD_INPUT
from keep_agent.rollout.run_folder import EPISODES, SUMMARY, find_runs
from tests.eval.workers.runs import Command, assert_refused

HOUSES = 4  # first houses of the split `test`
GROUNDED = ("env.skills=grounded", "env.observability=partial")


@pytest.fixture
def engine() -> None:
    for name in ("textworld", "alfworld"):
        pytest.importorskip(name, reason=f"needs ALFWorld's own engine, {name} is missing: the extra alfworld")


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / SUMMARY).read_text())


def episode_ids(folder: Path) -> set[str]:
    return {json.loads(line)["id"] for line in (folder / EPISODES).read_text().splitlines()}


def test_the_experts_solve_the_same_houses_in_both_engines(engine: None, call: Command) -> None:
    code, out, _ = call(games.main, "--out", "games", "--houses", str(HOUSES))
    assert code == 0 and "games in games/test; houses left out:" in out
    files = sorted(Path("games/test").glob(f"*/*/{FILE_NAME}"))
    before = [file.stat().st_mtime_ns for file in files]
    ids = {episode.id for episode in load_episodes(None, "test", limit=HOUSES) if not unsupported_reason(episode)}
    assert {file.parent.name for file in files} == ids and len(ids) > 1
    call(games.main, "--out", "games", "--houses", str(HOUSES))
    assert [file.stat().st_mtime_ns for file in files] == before, "existing games are kept"

    run = ("planner=expert", "env.data=games", "env.split=test", "eval.out=both")
    assert call(alfworld.main, *run)[0] == 0
    assert call(alfred.main, "planner=expert", *GROUNDED, f"eval.episodes={HOUSES}", "eval.out=both")[0] == 0
    alfworld_run, alfred_run = sorted(find_runs(Path("both")))
    assert summary(alfworld_run)["success_rate"] == summary(alfred_run)["success_rate"] == 1.0
    assert episode_ids(alfworld_run) == ids <= episode_ids(alfred_run)
    code, out, _ = call(compare.main, "both")
    assert code == 0 and f"{len(ids)}" in out


def test_alfworld_itself_finds_the_games(engine: None, call: Command, tmp_path: Path) -> None:
    from alfworld.agents.environment.alfred_tw_env import AlfredTWEnv

    assert call(games.main, "--out", "games", "--houses", "2")[0] == 0
    dataset = {"eval_id_data_path": str(tmp_path / "games"), "num_eval_games": 0}
    config = {"env": {"goal_desc_human_anns_prob": 0, "task_types": [1, 2, 3, 4, 5, 6]}, "dataset": dataset}
    files = AlfredTWEnv(config, train_eval="eval_in_distribution").game_files
    assert {Path(file) for file in files} == set((tmp_path / "games").glob(f"*/*/*/{FILE_NAME}")) != set()


def test_a_random_planner_plays_alfworld_commands(engine: None, call: Command) -> None:
    assert call(games.main, "--out", "games", "--houses", "1")[0] == 0
    run = ("env.data=games", "env.split=test", "env.skills=commands", "env.max_steps=5", "env.scored=ever")
    code, out, _ = call(alfworld.main, "planner=random", *run, "eval.out=runs")
    assert code == 0 and "ALFWorld's TextWorld engine" in out
    (folder,) = find_runs(Path("runs"))
    assert (summary(folder)["tasks"], summary(folder)["crashed"]) == (1, 0)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ((), "env.data is not set; name ALFWorld's folder json_2.1.1, or write games with python -m eval.games"),
        (("env.data=nowhere",), "nowhere is not a folder"),
        (("env.data=.",), "no games of ALFWorld in ."),
    ],
)
def test_bad_input_is_one_line(overrides: tuple[str, ...], sentence: str, call: Command, tmp_path: Path) -> None:
    assert_refused(call(alfworld.main, "planner=random", *overrides), sentence)
    assert not list(tmp_path.iterdir())


def test_the_command_needs_its_extra(call: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "alfworld"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "alfworld", None)
    file = tmp_path / "games" / "test" / "pick_and_place_simple-CD-None-Safe-1" / "trial" / FILE_NAME
    file.parent.mkdir(parents=True)
    game = {"pddl_domain": "", "grammar": '"Your task is to: tidy up."', "pddl_problem": "", "solvable": True}
    file.write_text(json.dumps(game))
    code, _, err = call(alfworld.main, "planner=random", "env.data=games", "env.split=test")
    assert code == BAD_INPUT and "pip install 'keep-agent[alfworld]'" in err
    assert call(games.main, "--out", "more")[0] == BAD_INPUT
    assert [path.name for path in tmp_path.iterdir()] == ["games"]


def test_houses_that_alfworld_cannot_express() -> None:
    reasons = {unsupported_reason(episode) for episode in load_episodes(None, "test", limit=60)}
    assert reasons == {"", "slices", "movable receptacles", "objects on the floor", "objects in movable receptacles"}
    assert unsupported_reason(load_episodes(None, "test", stream=2, limit=1)[0]) == "several tasks"


def test_words_that_the_grammar_reserves_are_refused() -> None:
    (house,) = load_episodes(None, "test", limit=1)
    worded = replace(house, tasks=(replace(house.tasks[0], instruction="put #1 in {2}"),))
    pytest.importorskip("alfworld", reason="needs the extra alfworld")
    with pytest.raises(ConfigError, match="holds one of"):
        games.game_of(worded, None)
