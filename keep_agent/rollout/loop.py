"""Rollout loop for all worlds and planners, one episode at a time."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from keep_agent.errors import EpisodeError, ModelError
from keep_agent.rollout.results import EpisodeResult, StepNumbers, TaskOutcome
from keep_agent.rollout.trace import crash_entry, episode_entry, step_entry, step_numbers, task_entry
from planners.base import DONE, Decision, Planner, TaskResult

if TYPE_CHECKING:
    import gymnasium

    from envs.setting import Episode
    from keep_agent.rollout.frames import Frames


class ProgressWatcher(Protocol):
    """Observer of running episodes, such as a progress bar."""

    def step(self, episode: str, number: int, skill: str) -> None: ...


@dataclass
class Rollout:
    """State of a running episode: its steps, outcomes and trace entries so far."""

    index: int
    id: str
    plan: tuple[Any, ...]  # the episode's tasks
    frames: Frames | None = None  # receives the pictures of the observations
    entries: list[dict[str, Any]] = field(default_factory=list)
    steps: list[StepNumbers] = field(default_factory=list)
    outcomes: list[TaskOutcome] = field(default_factory=list)
    expert_lengths: list[int] = field(default_factory=list)  # number of skills in each begun task's demonstration
    error: str = ""
    restarts: int = 0  # restarts of the simulator so far

    @property
    def task(self) -> int:
        return len(self.outcomes)

    def simulator_fields(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``frame``, the path of a picture, and ``restarted`` if the simulator restarted since the last call."""
        before, self.restarts = self.restarts, info.get("restarts", 0)
        fields: dict[str, Any] = {}
        if self.frames is not None and (picture := observation.get("frame")) is not None:
            fields["frame"] = self.frames.add(len(self.steps), picture)
        return fields | ({"restarted": True} if self.restarts > before else {})

    def finish(self, result: Any, last_skill: str) -> TaskOutcome:
        """Record the world's result of the current task."""
        stop = "success" if result.success else "done" if last_skill == DONE else "max_steps"
        outcome = self._outcome(result.task, result.success, result.met, result.total, result.steps, stop)
        self.outcomes.append(outcome)
        self.entries.append(task_entry(self.id, self.task - 1, outcome))
        return outcome

    def crash(self, error: Exception, met: int, total: int) -> None:
        """Record the current and all following tasks as failures, so that they count in the success rate.

        If all tasks have ended, the last task fails. ``met`` of ``total`` goal conditions hold at the crash.
        """
        self.error = traceback.format_exception_only(error)[-1].strip()
        self.entries.append(crash_entry(self.id, self.task, traceback.format_exc()))
        if self.task == len(self.plan):
            self.outcomes[-1] = replace(self.outcomes[-1], success=False, stop="crash")
        for task in self.plan[self.task :]:
            steps = sum(step.task == self.task for step in self.steps)
            self.outcomes.append(self._outcome(task, False, met, total, steps, "crash"))
            met, total = 0, 1  # the following tasks have not begun

    def result(self, start: float) -> EpisodeResult:
        """Return the result; ``start`` is the value of `perf_counter` before the reset."""
        outcomes, steps, seconds = tuple(self.outcomes), tuple(self.steps), time.perf_counter() - start
        return EpisodeResult(self.index, self.id, outcomes, steps, seconds, self.error, self.restarts)

    def _outcome(self, task: Any, success: bool, met: int, total: int, steps: int, stop: str) -> TaskOutcome:
        length = self.expert_lengths[self.task] if self.task < len(self.expert_lengths) else 0
        return TaskOutcome(task.id, task.type, task.instruction, success, met, total, steps, length, stop)


def run_episode(
    env: gymnasium.Env,
    planner: Planner,
    episode: Episode,
    *,
    index: int,
    skills: str,
    seed: int,
    demonstration_length: Callable[[Mapping[str, Any]], int] | None = None,
    watcher: ProgressWatcher | None = None,
    frames: Frames | None = None,
) -> tuple[EpisodeResult, list[dict[str, Any]]]:
    """Run one episode; return its result and its trace entries.

    EpisodeError, and any error after the reset, makes the episode a failure; the trace has the traceback. Any other
    error of ``env.reset`` means invalid data and is raised. ModelError and KeyboardInterrupt are always raised.

    :param skills: name of the set of skills, for the planner and the trace
    :param demonstration_length: takes the first ``info`` of a task, returns how many skills the expert needs for it
    :param frames: receives the pictures in the observations (key "frame")
    """
    start = time.perf_counter()
    rollout = Rollout(index, episode.id, episode.tasks, frames)
    try:
        observation, info = env.reset(seed=seed, options={"episode": episode})
        entry = episode_entry(index, episode, skills, info.get("notes"))
        rollout.entries.append(entry | rollout.simulator_fields(observation, info))
    except EpisodeError as error:
        rollout.entries.append(episode_entry(index, episode, skills))
        rollout.crash(error, 0, 1)
        return rollout.result(start), rollout.entries
    try:
        planner.reset(observation["instruction"], skills)
        over = False
        while not over:
            if demonstration_length is not None and len(rollout.expert_lengths) == rollout.task:
                rollout.expert_lengths.append(demonstration_length(info))
            observation, info, over = _run_step(env, planner, rollout, observation, info)
            if watcher is not None:
                watcher.step(rollout.id, len(rollout.steps), rollout.entries[-1].get("skill", ""))
    except ModelError:
        raise
    except Exception as error:  # of any type, from planner or world
        is_current = info["task_index"] == rollout.task  # the last info may be about the task that has just ended
        rollout.crash(error, *(info["goal"] if is_current else (0, 1)))
    return rollout.result(start), rollout.entries


def _run_step(
    env: gymnasium.Env, planner: Planner, rollout: Rollout, observation: Mapping[str, Any], info: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Mapping[str, Any], bool]:
    facts = info["facts"]
    began = time.perf_counter()
    planner.observe(facts)
    decision: Decision = planner.decide(info["skills"], info)
    wall_ms = 1e3 * (time.perf_counter() - began)
    following, _, terminated, truncated, after = env.step(decision.skill)
    ok, message = after["outcome_ok"], following["feedback"]
    planner.feedback(decision.skill, after.get("told_ok", ok), message)
    numbers = step_numbers(decision, rollout.task, wall_ms)
    rollout.steps.append(numbers)
    done = after.get("task_done")
    entry = step_entry(
        rollout.id,
        numbers,
        info["step"],
        instruction=observation["instruction"],
        facts=facts,
        decision=decision,
        ok=ok,
        message=message,
        goal=after["goal"] if done is None else (done.met, done.total),
    )
    rollout.entries.append(entry | rollout.simulator_fields(following, after))
    over = terminated or truncated
    if done is not None:
        outcome = rollout.finish(done, decision.skill)
        next_instruction = None if over else following["instruction"]
        planner.finish_task(TaskResult(outcome.instruction, outcome.success, outcome.steps), next_instruction)
    return following, after, over
