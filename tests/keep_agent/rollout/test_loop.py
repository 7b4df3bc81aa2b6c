from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import pytest
from omegaconf import DictConfig, OmegaConf

from envs.alfred.env import AlfredEnv
from envs.alfred.scene import Episode
from envs.wah.env import WatchAndHelpEnv
from envs.wah.spec import load_episodes as load_apartments
from keep_agent.config.factory import demonstration, expert_oracle, make_planner
from keep_agent.errors import DataError, EpisodeError, ModelError
from keep_agent.rollout.frames import Frames
from keep_agent.rollout.loop import run_episode
from keep_agent.rollout.results import EpisodeResult
from planners.base import Decision, ExpertPlanner, Planner, RandomPlanner, TaskResult
from tests.keep_agent.rollout.houses import APPLE, MUG, episode
from tests.keep_agent.rollout.pictures import Pictured, picture

SETTINGS = [("lota", "full"), ("grounded", "partial"), ("grounded", "full")]


def world(skills: str = "grounded", observability: str = "full", **more: Any) -> gymnasium.Env:
    return AlfredEnv(skills=skills, observability=observability, episodes=[episode(MUG)], **more)


def config(skills: str, observability: str) -> DictConfig:
    choices = {"skills": skills, "observability": observability, "goal_matching": "type", "max_steps": None}
    return OmegaConf.create({"id": "keep_agent:Alfred-v0", **choices})


def play(planner: Planner, played: Episode, env: gymnasium.Env, skills: str = "grounded") -> tuple[EpisodeResult, list]:
    demonstrate = demonstration(config(skills, "full"))
    return run_episode(env, planner, played, index=0, skills=skills, seed=0, demonstrate=demonstrate)


def expert(skills: str, observability: str) -> Planner:
    planner = OmegaConf.create({"kind": "expert", "name": "expert"})
    return make_planner(OmegaConf.create({"planner": planner, "env": config(skills, observability)}))


class Scripted(RandomPlanner):
    """Says what it is told to, then stops; notes what it is told."""

    def __init__(self, *skills: str) -> None:
        super().__init__()
        self.skills = list(skills)
        self.heard: list[Any] = []

    def decide(self, admissible: Sequence[str], info: Mapping[str, Any]) -> Decision:
        return Decision(self.skills.pop(0))

    def observe(self, facts: Sequence[Any]) -> None:
        self.heard.append([fact.id for fact in facts])

    def feedback(self, skill: str, ok: bool, message: str) -> None:
        self.heard.append((skill, ok, message))

    def finish_task(self, result: TaskResult, following: str | None) -> None:
        self.heard.append((result, following))


@pytest.mark.parametrize(("skills", "observability"), SETTINGS)
def test_the_expert_succeeds_and_its_path_has_the_demonstrated_length(skills: str, observability: str) -> None:
    result, entries = play(expert(skills, observability), episode(MUG, APPLE), world(skills, observability), skills)
    assert [task.stop for task in result.tasks] == ["success", "success"]
    assert all(task.met == task.total for task in result.tasks)
    assert sum(task.steps for task in result.tasks) == len(result.steps)
    if observability == "full":
        assert [task.steps for task in result.tasks] == [task.expert_steps for task in result.tasks]
    assert [entry["event"] for entry in entries if entry["event"] != "step"] == ["episode", "task", "task"]
    assert [step.task for step in result.steps] == [entry["task"] for entry in entries if entry["event"] == "step"]


def test_done_without_success_and_running_out_of_steps_are_told_apart() -> None:
    result, _ = play(Scripted("done"), episode(MUG), world())
    assert [(task.stop, task.success, task.steps) for task in result.tasks] == [("done", False, 1)]
    result, _ = play(Scripted(*["go to cabinet 1"] * 3), episode(MUG), world(max_steps=3))
    assert [(task.stop, task.success, task.steps) for task in result.tasks] == [("max_steps", False, 3)]


def test_the_planner_hears_of_facts_feedback_and_ends_in_order() -> None:
    planner = Scripted("open countertop 1", "done", "done")
    _, entries = play(planner, episode(MUG, APPLE), world())
    first, failure, changed, done, finished, *_ = planner.heard
    assert {"mug_1", "cabinet_1", "agent"} <= set(first)
    assert failure[0] == "open countertop 1" and failure[1] is False and failure[2]
    assert changed == []
    assert done[:2] == ("done", True)
    assert finished == (TaskResult(MUG.instruction, False, 2), APPLE.instruction)
    assert planner.heard[-1] == (TaskResult(APPLE.instruction, False, 1), None)
    step = next(entry for entry in entries if entry["event"] == "step")
    assert step["ok"] is False and step["message"] == failure[2] and step["instruction"] == MUG.instruction


@pytest.mark.parametrize(("messages", "told"), [("reasons", False), ("lota", True)])
def test_a_failure_is_told_by_its_flag_unless_the_benchmark_hides_it(messages: str, told: bool) -> None:
    planner = Scripted("open the fridge", "done")
    (played,) = load_apartments(None, "test", limit=1)
    env = WatchAndHelpEnv(messages=messages, episodes=[played])
    _, entries = run_episode(env, planner, played, index=0, skills="lota", seed=0)
    skill, ok, message = planner.heard[1]
    assert (skill, ok, bool(message)) == ("open the fridge", told, not told)
    step = next(entry for entry in entries if entry["event"] == "step")
    assert step["ok"] is False, "the trace tells what happened"


def test_a_crash_fails_this_task_and_all_that_follow_and_leaves_its_traceback() -> None:
    result, entries = play(Scripted("done", "fly to the moon"), episode(MUG, APPLE, MUG), world())
    assert [task.stop for task in result.tasks] == ["done", "crash", "crash"]
    assert not any(task.success for task in result.tasks)
    assert result.crashed and "fly to the moon" in result.error
    crash = entries[-1]
    assert crash["event"] == "crash" and crash["task"] == 1 and "Traceback" in crash["traceback"]


class Forgetful(ExpertPlanner):
    def finish_task(self, result: TaskResult, following: str | None) -> None:
        raise RuntimeError("nothing to write with")


def test_a_crash_behind_the_last_task_fails_it() -> None:
    result, _ = play(Forgetful(expert_oracle(config("grounded", "full"))), episode(MUG), world())
    assert [(task.stop, task.success) for task in result.tasks] == [("crash", False)] and result.crashed


def test_a_crash_between_tasks_leaves_the_next_one_unbegun() -> None:
    """Conditions that the finished task had met are not counted for the next."""
    result, _ = play(Forgetful(expert_oracle(config("grounded", "full"))), episode(MUG, APPLE), world())
    assert [(task.met, task.total, task.steps, task.stop) for task in result.tasks][1:] == [(0, 1, 0, "crash")]
    assert result.tasks[0].success


def test_a_model_that_cannot_decide_is_no_failure_of_the_planner() -> None:
    class Broken(Scripted):
        def decide(self, admissible: Sequence[str], info: Mapping[str, Any]) -> Decision:
            raise ModelError("logits are not finite")

    with pytest.raises(ModelError, match="not finite"):
        play(Broken(), episode(MUG), world())


def test_bad_data_is_the_users_error_and_an_interrupt_is_no_crash() -> None:
    class Broken(AlfredEnv):
        def reset(self, **options: Any) -> Any:
            raise DataError("traj_data.json is truncated")

    with pytest.raises(DataError, match="truncated"):
        play(Scripted(), episode(MUG), Broken(episodes=[episode(MUG)]))

    class Interrupted(Scripted):
        def decide(self, admissible: Sequence[str], info: Mapping[str, Any]) -> Decision:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(Interrupted(), episode(MUG), world())


def test_chance_depends_on_seed_episode_and_step_alone() -> None:
    def skills(seed: int) -> list[str]:
        _, entries = play(RandomPlanner(seed), episode(MUG), world())
        return [entry["skill"] for entry in entries if entry["event"] == "step"]

    assert skills(1) == skills(1)
    assert skills(1) != skills(2)


def shown(env: gymnasium.Env, frames: Frames | None, *skills: str) -> tuple[EpisodeResult, list]:
    return run_episode(env, Scripted(*skills), episode(MUG, APPLE), index=0, skills="grounded", seed=0, frames=frames)


def test_pictures_are_numbered_over_the_whole_episode_and_named_in_the_trace() -> None:
    frames = Frames("by hand", "png")
    result, entries = shown(Pictured(world()), frames, "go to cabinet 1", "done", "go to cabinet 1", "done")
    named = [entry["frame"] for entry in entries if entry["event"] in ("episode", "step")]
    assert named == [f"frames/by%20hand/000{step}.png" for step in range(5)]
    assert list(frames.files) == [name.rpartition("/")[2] for name in named] and not result.crashed
    assert not any("frame" in entry for entry in entries if entry["event"] == "task")


@pytest.mark.parametrize("env", [world(), Pictured(world())])
def test_without_pictures_or_a_place_for_them_the_trace_names_none(env: gymnasium.Env) -> None:
    frames = None if isinstance(env, Pictured) else Frames("e")
    _, entries = shown(env, frames, "done", "done")
    assert not any({"frame", "restarted", "notes"} & set(entry) for entry in entries)
    assert frames is None or not frames.files


def test_what_is_no_picture_is_the_users_error_at_first_and_a_crash_later() -> None:
    class Blind(Pictured):
        def _seen(self, observation: dict[str, Any]) -> dict[str, Any]:
            return observation | {"frame": picture(0) if self._steps < broken else picture(0)[0]}

    broken = 0
    with pytest.raises(DataError, match="a frame is uint8"):
        shown(Blind(world()), Frames("e"), "done", "done")
    broken = 2
    result, entries = shown(Blind(world()), Frames("e"), "done", "done")
    assert [task.stop for task in result.tasks] == ["done", "crash"] and "a frame is uint8" in result.error
    assert entries[1]["frame"] == "frames/e/0001.jpg"


def test_restarts_of_the_simulator_are_marked_where_their_count_rose() -> None:
    result, entries = shown(Pictured(world(), restarts=(0, 2, 2)), None, "go to cabinet 1", "done", "done")
    told = [entry.get("restarted") for entry in entries if entry["event"] in ("episode", "step")]
    assert told == [True, None, True, None] and result.restarts == 3
    result, entries = shown(Pictured(world()), None, "done", "done")
    assert result.restarts == 0 and not any("restarted" in entry for entry in entries)


@pytest.mark.parametrize("notes", [None, {}, {"not restored": ["mug_1"]}])
def test_what_the_world_says_of_the_beginning_is_in_the_trace(notes: Any) -> None:
    _, entries = shown(Pictured(world(), notes=notes), None, "done", "done")
    assert entries[0].get("notes") == (notes or None) and not any("notes" in entry for entry in entries[1:])
    assert json.loads(json.dumps(entries)) == entries


def test_a_simulator_that_does_not_get_up_for_an_episode_fails_that_one_alone() -> None:
    class Down(AlfredEnv):
        def reset(self, **_: Any) -> Any:
            raise EpisodeError("it does not answer")

    result, entries = shown(Down(episodes=[episode(MUG)]), Frames("e"))
    assert [(task.stop, task.met, task.total) for task in result.tasks] == [("crash", 0, 1)] * 2
    assert result.error.endswith("it does not answer") and [entry["event"] for entry in entries] == ["episode", "crash"]
