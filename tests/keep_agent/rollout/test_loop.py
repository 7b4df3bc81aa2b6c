from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import pytest
from omegaconf import DictConfig, OmegaConf

from envs.alfred.env import AlfredEnv
from envs.alfred.scene import Episode, Task
from envs.wah.env import WatchAndHelpEnv
from envs.wah.spec import load_episodes as load_apartments
from keep_agent.config.factory import demonstration_length, expert_oracle, make_planner
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


def play(planner: Planner, house: Episode, env: gymnasium.Env, skills: str = "grounded") -> tuple[EpisodeResult, list]:
    length = demonstration_length(config(skills, "full"))
    return run_episode(env, planner, house, index=0, skills=skills, seed=0, demonstration_length=length)


def expert(skills: str, observability: str) -> Planner:
    planner = OmegaConf.create({"kind": "expert", "name": "expert"})
    return make_planner(OmegaConf.create({"planner": planner, "env": config(skills, observability)}))


class Scripted(RandomPlanner):
    """Planner that decides as its script says, and records its other calls."""

    def __init__(self, *skills: str) -> None:
        super().__init__()
        self.skills = list(skills)
        self.calls: list[Any] = []

    def decide(self, admissible: Sequence[str], info: Mapping[str, Any]) -> Decision:
        return Decision(self.skills.pop(0))

    def observe(self, facts: Sequence[Any]) -> None:
        self.calls.append([fact.id for fact in facts])

    def feedback(self, skill: str, ok: bool, message: str) -> None:
        self.calls.append((skill, ok, message))

    def finish_task(self, result: TaskResult, following: str | None) -> None:
        self.calls.append((result, following))


@pytest.mark.parametrize(("skills", "observability"), SETTINGS)
def test_expert_succeeds_in_the_steps_of_the_demonstration(skills: str, observability: str) -> None:
    result, entries = play(expert(skills, observability), episode(MUG, APPLE), world(skills, observability), skills)
    assert [task.stop for task in result.tasks] == ["success", "success"]
    assert all(task.met == task.total for task in result.tasks)
    assert sum(task.steps for task in result.tasks) == len(result.steps)
    if observability == "full":
        assert [task.steps for task in result.tasks] == [task.expert_steps for task in result.tasks]
    assert [entry["event"] for entry in entries if entry["event"] != "step"] == ["episode", "task", "task"]
    assert [step.task for step in result.steps] == [entry["task"] for entry in entries if entry["event"] == "step"]


def test_early_done_and_step_limit_are_different_stops() -> None:
    for stop, skills in (("done", ["done"]), ("max_steps", ["go to cabinet 1"] * 3)):
        result, _ = play(Scripted(*skills), episode(MUG), world(max_steps=3))
        assert [(task.stop, task.success, task.steps) for task in result.tasks] == [(stop, False, len(skills))]


def test_planner_receives_facts_feedback_and_ends_in_order() -> None:
    planner = Scripted("open countertop 1", "done", "done")
    _, entries = play(planner, episode(MUG, APPLE), world())
    first, failure, changed, done, finished, *_ = planner.calls
    assert {"mug_1", "cabinet_1", "agent"} <= set(first)
    assert failure[:2] == ("open countertop 1", False) and failure[2]
    assert (changed, done[:2]) == ([], ("done", True))
    assert finished == (TaskResult(MUG.instruction, False, 2), APPLE.instruction)
    assert planner.calls[-1] == (TaskResult(APPLE.instruction, False, 1), None)
    step = next(entry for entry in entries if entry["event"] == "step")
    assert step["ok"] is False and step["message"] == failure[2] and step["instruction"] == MUG.instruction


@pytest.mark.parametrize(("messages", "flag"), [("reasons", False), ("lota", True)])
def test_planner_receives_the_flag_of_a_failure_unless_the_benchmark_hides_it(messages: str, flag: bool) -> None:
    planner = Scripted("open the fridge", "done")
    (apartment,) = load_apartments(None, "test", limit=1)
    env = WatchAndHelpEnv(messages=messages, episodes=[apartment])
    _, entries = run_episode(env, planner, apartment, index=0, skills="lota", seed=0)
    skill, ok, message = planner.calls[1]
    assert (skill, ok, bool(message)) == ("open the fridge", flag, not flag)
    step = next(entry for entry in entries if entry["event"] == "step")
    assert step["ok"] is False, "the trace has the true result"


def test_crash_fails_the_task_and_all_following_ones() -> None:
    result, entries = play(Scripted("done", "fly to the moon"), episode(MUG, APPLE, MUG), world())
    assert [task.stop for task in result.tasks] == ["done", "crash", "crash"]
    assert not any(task.success for task in result.tasks)
    assert result.crashed and "fly to the moon" in result.error
    crash = entries[-1]
    assert crash["event"] == "crash" and crash["task"] == 1 and "Traceback" in crash["traceback"]


class Forgetful(ExpertPlanner):
    def finish_task(self, result: TaskResult, following: str | None) -> None:
        raise RuntimeError("nothing to write with")


@pytest.mark.parametrize("tasks", [(MUG,), (MUG, APPLE)])
def test_crash_at_the_end_of_a_task_fails_the_next_one_or_the_last(tasks: tuple[Task, ...]) -> None:
    result, _ = play(Forgetful(expert_oracle(config("grounded", "full"))), episode(*tasks), world())
    *done, crash = result.tasks
    assert (crash.stop, crash.success) == ("crash", False) and result.crashed
    assert [task.success for task in done] == [True] * (len(tasks) - 1)
    assert not done or (crash.met, crash.total, crash.steps) == (0, 1, 0), "no conditions of the next task count"


@pytest.mark.parametrize("error", [ModelError("logits are not finite"), KeyboardInterrupt()], ids=repr)
def test_model_error_and_interrupt_are_raised(error: BaseException) -> None:
    class Broken(Scripted):
        def decide(self, admissible: Sequence[str], info: Mapping[str, Any]) -> Decision:
            raise error

    with pytest.raises(type(error)) as caught:
        play(Broken(), episode(MUG), world())
    assert caught.value is error


def test_data_error_of_the_reset_is_raised_and_an_episode_error_fails_the_episode() -> None:
    class Broken(AlfredEnv):
        def reset(self, **_: Any) -> Any:
            raise error

    env, error = Broken(episodes=[episode(MUG)]), DataError("traj_data.json is truncated")
    with pytest.raises(DataError, match="truncated"):
        play(Scripted(), episode(MUG), env)
    error = EpisodeError("it does not answer")
    result, entries = play_pictured(env, Frames("e"))
    assert [(task.stop, task.met, task.total) for task in result.tasks] == [("crash", 0, 1)] * 2
    assert result.error.endswith("it does not answer") and [entry["event"] for entry in entries] == ["episode", "crash"]


def test_random_planner_depends_on_its_seed_alone() -> None:
    def skills(seed: int) -> list[str]:
        _, entries = play(RandomPlanner(seed), episode(MUG), world())
        return [entry["skill"] for entry in entries if entry["event"] == "step"]

    assert skills(1) == skills(1) != skills(2)


def play_pictured(env: gymnasium.Env, frames: Frames | None, *skills: str) -> tuple[EpisodeResult, list]:
    return run_episode(env, Scripted(*skills), episode(MUG, APPLE), index=0, skills="grounded", seed=0, frames=frames)


def test_trace_names_the_pictures_of_the_episode() -> None:
    frames = Frames("by hand", "png")
    result, entries = play_pictured(Pictured(world()), frames, "go to cabinet 1", "done", "go to cabinet 1", "done")
    names = [entry["frame"] for entry in entries if entry["event"] in ("episode", "step")]
    assert names == [f"frames/by%20hand/000{step}.png" for step in range(5)]
    assert list(frames.files) == [name.rpartition("/")[2] for name in names] and not result.crashed
    assert not any("frame" in entry for entry in entries if entry["event"] == "task")


@pytest.mark.parametrize("env", [world(), Pictured(world())])
def test_trace_names_no_pictures_without_a_camera_or_frames(env: gymnasium.Env) -> None:
    frames = None if isinstance(env, Pictured) else Frames("e")
    _, entries = play_pictured(env, frames, "done", "done")
    assert not any({"frame", "restarted", "notes"} & set(entry) for entry in entries)
    assert frames is None or not frames.files


def test_invalid_picture_is_an_error_of_the_reset_and_a_crash_later() -> None:
    class Blind(Pictured):
        def _with_frame(self, observation: dict[str, Any]) -> dict[str, Any]:
            return observation | {"frame": picture(0) if self._steps < broken else picture(0)[0]}

    broken = 0
    with pytest.raises(DataError, match="a frame is uint8"):
        play_pictured(Blind(world()), Frames("e"), "done", "done")
    broken = 2
    result, entries = play_pictured(Blind(world()), Frames("e"), "done", "done")
    assert [task.stop for task in result.tasks] == ["done", "crash"] and "a frame is uint8" in result.error
    assert entries[1]["frame"] == "frames/e/0001.jpg"


def test_trace_marks_restarts_of_the_simulator() -> None:
    result, entries = play_pictured(Pictured(world(), restarts=(0, 2, 2)), None, "go to cabinet 1", "done", "done")
    restarts = [entry.get("restarted") for entry in entries if entry["event"] in ("episode", "step")]
    assert restarts == [True, None, True, None] and result.restarts == 3
    result, entries = play_pictured(Pictured(world()), None, "done", "done")
    assert result.restarts == 0 and not any("restarted" in entry for entry in entries)


@pytest.mark.parametrize("notes", [None, {}, {"not restored": ["mug_1"]}])
def test_notes_of_the_world_are_in_the_first_entry(notes: Any) -> None:
    _, entries = play_pictured(Pictured(world(), notes=notes), None, "done", "done")
    assert entries[0].get("notes") == (notes or None) and not any("notes" in entry for entry in entries[1:])
    assert json.loads(json.dumps(entries)) == entries
