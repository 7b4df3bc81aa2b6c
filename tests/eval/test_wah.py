"""Command ``eval.wah``: runs, its own settings, and the simulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envs.wah.spec import load_episodes
from eval import compare, wah
from keep_agent.guard import BAD_INPUT
from keep_agent.rollout.run_folder import CONFIG, EPISODES, SUMMARY, TRACE, find_runs
from keep_agent.rollout.trace import read_trace
from tests.envs.wah.fake_simulator import FakeSimulator
from tests.envs.wah.graph_home import GraphHome
from tests.eval.workers.runs import Command, assert_refused
from tests.rewriting import change_object


def summaries(under: str) -> list[dict]:
    return [json.loads((folder / SUMMARY).read_text()) for folder in sorted(find_runs(Path(under)))]


def test_the_expert_solves_the_embedded_tasks_and_a_random_planner_does_not(call: Command) -> None:
    for planner in ("expert", "random"):
        code, out, _ = call(wah.main, f"planner={planner}", "eval.episodes=4", "eval.out=both")
        assert code == 0 and "sub-goals %" in out
    expert, random = summaries("both")
    assert expert["subgoal_success_rate"] == expert["success_rate"] == 1.0 and random["success_rate"] == 0.0
    assert set(expert["per_task_type"]) <= {
        "prepare_snack", "prepare_food", "setup_table", "put_dishwasher", "put_fridge",
    }  # fmt: skip
    code, out, _ = call(compare.main, "both")
    assert code == 0 and "sub-goals %" in out and "-100.0" in out


def test_keep_plays_with_its_memory_in_both_settings(call: Command) -> None:
    more = ("planner=keep", "eval.episodes=1", "eval.threads=1", "env.max_steps=4")
    for setting in ((), ("env.skills=grounded", "env.observability=partial", "prompt.style=linked")):
        code, out, _ = call(wah.main, *more, *setting, f"eval.out=out{len(setting)}")
        assert code == 0 and "ttft_ms" in out
        (summary,) = summaries(f"out{len(setting)}")
        assert summary["crashed"] == 0 and summary["encoded_token_layers"] > 0 and summary["computed_ratio"] < 1


def test_runs_in_the_simulator_and_from_its_recording_are_equal(call: Command) -> None:
    records = write_tasks(Path("tasks.json"), 2)
    run = ("planner=random", "env.data=tasks.json")
    runs = {}
    with FakeSimulator(GraphHome([record["init_graph"] for record in records])) as server:
        live = (f"env.simulator={server.url}", "env.record=talk.jsonl.gz")
        for name, more in {"alone": (), "live": live}.items():
            assert call(wah.main, *run, f"eval.out={name}", *more)[0] == 0
            runs[name] = steps_of(name)
        recording = Path("talk.jsonl.gz").read_bytes()
        for broken in (("planner=keep", "model=nowhere"), ("planner=random",)):
            assert call(wah.main, *broken, "env.data=tasks.json", "eval.out=no", *live)[0] == BAD_INPUT
    assert call(wah.main, *run, "eval.out=again", "env.simulator=talk.jsonl.gz")[0] == 0
    assert runs["alone"] == runs["live"] == steps_of("again")
    assert Path("talk.jsonl.gz").read_bytes() == recording


def two_episodes(config: dict[str, Any]) -> None:
    config["episodes"] = config["eval"]["episodes"] = 2


def test_a_run_is_resumed_in_another_simulator(call: Command) -> None:
    records = write_tasks(Path("tasks.json"), 2)
    run = ("planner=random", "env.data=tasks.json", "eval.out=runs")
    home = GraphHome([record["init_graph"] for record in records])
    with FakeSimulator(home) as server:
        assert call(wah.main, *run, f"env.simulator={server.url}", "env.record=a.jsonl", "eval.episodes=1")[0] == 0
        (folder,) = find_runs(Path("runs"))
        change_object(folder / CONFIG, two_episodes)  # as if interrupted after the first episode
    refusals = {
        (): f"cannot choose an address: if you trust it, give env.simulator='{server.url}'",
        (f"env.simulator={server.url}",): "a file to write: if you trust it, give env.record='a.jsonl'",
        (f"env.simulator={server.url}", "env.record=b.jsonl"): "start the simulator",
    }
    for overrides, message in refusals.items():
        assert_refused(call(wah.main, f"eval.resume={folder}", *overrides), message)
    with FakeSimulator(home) as server:
        code, _, err = call(wah.main, f"eval.resume={folder}", f"env.simulator={server.url}", "env.record=a.jsonl")
        assert code == BAD_INPUT and "a.jsonl already exists" in err
        resumed = (f"eval.resume={folder}", f"env.simulator={server.url}", "env.record=b.jsonl")
        assert call(wah.main, *resumed)[0] == 0
    assert len(steps_of("runs")) > 0 and Path("a.jsonl").stat().st_size > 0 and Path("b.jsonl").stat().st_size > 0


def write_tasks(path: Path, count: int) -> list[dict]:
    """Write embedded tasks in WAH-NL's format, for scenes 0, 1, ... of a simulator."""
    records = []
    for number, episode in enumerate(load_episodes(None, "test", limit=count)):
        (task,), scene = episode.tasks, episode.scene
        names = {"task_id": number, "task_name": task.type, "env_id": number, "nl_instructions": [task.instruction]}
        scene_parts = {"init_graph": scene.graph, "init_room": scene.room, "task_goal": dict(task.goal)}
        records.append(names | scene_parts)
    path.write_text(json.dumps(records))
    return records


def steps_of(under: str) -> list[tuple]:
    (folder,) = find_runs(Path(under))
    steps = [entry for entry in read_trace(folder / TRACE) if entry["event"] == "step"]
    assert len((folder / EPISODES).read_text().splitlines()) == 2
    return [(step["episode"], step["skill"], step["ok"], step["message"], step["facts"]) for step in steps]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("env.rules=kind",), "rules='kind' is unknown; use one of lota, strict"),
        (("env.split=valid_seen",), "unknown split 'valid_seen'"),
        (("env.data=nowhere",), "env.data=nowhere does not exist"),
        (("env.simulator=nowhere",), "neither the URL"),
        (("env.record=talk.jsonl",), "needs a simulator"),
        (("env.goal_matching=type",), "goal_matching"),
        (("env.simulator=http://127.0.0.1:9",), "start the simulator"),
    ],
)
def test_bad_input_is_one_line_and_no_folder(call: Command, arguments: tuple[str, ...], words: str) -> None:
    assert_refused(call(wah.main, "planner=expert", "eval.episodes=1", *arguments), words)
    assert not Path("outputs").exists()
