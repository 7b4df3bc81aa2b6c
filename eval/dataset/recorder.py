"""Recorder of episodes: observed facts, executed skills, and the expert's skill at every step.

The expert (with some random steps) or a planner acts; the expert supplies the labels (DAgger, arXiv 1011.0686).
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from envs.outcome import SUCCESS
from envs.setting import Episode, Expert, Knowledge, Setting, Task, goal_reached
from envs.worlds import WorldSpec
from planners.base import DONE, Planner, TaskResult
from planners.prompts.styles import FactRecord
from planners.training.rollout_files import Rollout, StepRecord, TaskRecord

PERTURBED_SHARE = 0.6  # share of tasks in which some of the expert's steps are random
REPEAT_PROBABILITY = 0.5  # probability that a random step is followed by another random step
MAX_DEVIATIONS = 12  # steps of a task in which a planner may differ from the labels; after these the expert acts


@dataclass(frozen=True, slots=True)
class HouseEpisodes:
    """Episodes of a house: one per annotation of an official trial, or only one, with ``wordings`` texts per task."""

    world: WorldSpec
    episodes: Sequence[Episode]
    wordings: int = 1

    def with_wordings(self, rng: random.Random) -> tuple[Episode, list[list[str]]]:
        """Return the first episode, and the distinct wordings of each of its tasks, the given instruction first."""
        first = self.episodes[0]
        if len(self.episodes) > 1:
            return first, [[episode.tasks[0].instruction for episode in self.episodes]]
        reworded = ([self.world.reword(first, task, rng) for _ in range(self.wordings - 1)] for task in first.tasks)
        pairs = zip(first.tasks, reworded, strict=True)
        return first, [list(dict.fromkeys([task.instruction, *texts])) for task, texts in pairs]


@dataclass(frozen=True, slots=True)
class EpisodeState:
    """State of an episode that is being played."""

    setting: Setting
    house: Any
    knowledge: Knowledge
    expert: Expert

    def admissible(self) -> tuple[str, ...]:
        return self.setting.space.admissible(self.house, self.knowledge)


class RolloutRecorder:
    """Recorder of the episodes of one setting. The label of a step is always the expert's choice."""

    def __init__(
        self, skills: str, observability: str, perturb: float, seed: int, planner: Planner | None = None
    ) -> None:
        """Store the options. ``perturb``: probability per step that random steps begin; ``planner``: acts if given."""
        self.skills, self.observability, self.perturb = skills, observability, perturb
        self._planner, self._rng = planner, random.Random(seed)
        self._last_random = False  # whether the last step was random

    def rollout(self, source: HouseEpisodes) -> Rollout:
        episode, wordings = source.with_wordings(self._rng)
        setting = source.world.play_setting(self.skills, self.observability, episode, self._rng)
        house = setting.begin(episode)
        play = EpisodeState(setting, house, setting.knowledge(house), setting.expert())
        instructions = [] if self._planner is None else [self._rng.choice(texts) for texts in wordings]
        tasks: list[TaskRecord] = []
        for number, (task, texts) in enumerate(zip(episode.tasks, wordings, strict=True)):
            house.begin_task()
            if self._planner is not None and number:
                result = TaskResult(instructions[number - 1], tasks[-1].success, len(tasks[-1].steps))
                self._planner.finish_task(result, instructions[number])
            elif self._planner is not None:
                self._planner.reset(instructions[0], self.skills)
            tasks.append(self._task(play, task, texts, source.world.goal_text(task)))
        return Rollout(episode.id, self.skills, self.observability, tuple(tasks))

    def _task(self, play: EpisodeState, task: Task, texts: Sequence[str], goal: str) -> TaskRecord:
        first, steps, self._last_random = self._new_facts(play), [], False
        rate = self.perturb if self._rng.random() < PERTURBED_SHARE else 0.0
        while len(steps) < play.setting.max_steps:
            label = play.expert.act(play.house, task, play.knowledge)
            deviations = sum(step.skill != step.label for step in steps)
            skill = self._choice(play, label, rate, deviations)
            outcome = SUCCESS if skill == DONE else play.setting.space.execute(play.house, skill)
            if self._planner is not None:
                self._planner.feedback(skill, outcome.ok or play.setting.hides_failures, outcome.message)
            facts = () if skill == DONE else self._new_facts(play)
            steps.append(StepRecord(skill, label, outcome.ok, outcome.message, facts))
            if skill == DONE:
                break
        success = goal_reached(play.setting, play.house, task)
        return TaskRecord(tuple(texts), first, tuple(steps), success, goal)

    def _new_facts(self, play: EpisodeState) -> tuple[FactRecord, ...]:
        facts = play.knowledge.update()
        if self._planner is not None:
            self._planner.observe(facts)
        return tuple(FactRecord(f.id, f.category, f.type, f.place, f.holds, f.states, f.gone, f.sees) for f in facts)

    def _choice(self, play: EpisodeState, label: str, rate: float, deviations: int) -> str:
        """Return the skill to execute, given the expert's ``label``. Only the expert ends a task.

        The planner decides at every step, even if its skill is not used, because its transcript must have every prompt.
        """
        decision = label if self._planner is None else self._planner.decide(play.admissible(), {}).skill
        if label == DONE:
            return DONE
        skill = label
        if self._planner is not None:
            skill = decision if deviations < MAX_DEVIATIONS else label
        elif self._rng.random() < (REPEAT_PROBABILITY if self._last_random else rate):
            skill = self._random_skill(play) or label
        self._last_random = rate > 0 and skill != label
        return label if skill == DONE else skill

    def _random_skill(self, play: EpisodeState) -> str | None:
        """Draw a verb, then a skill with it, since most skills begin with "go" and would be drawn too often."""
        verbs: dict[str, list[str]] = defaultdict(list)
        for skill in play.admissible():
            if skill != DONE:
                verbs[skill.split()[0]].append(skill)
        return self._rng.choice(verbs[self._rng.choice(sorted(verbs))]) if verbs else None
