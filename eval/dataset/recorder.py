"""Episodes played and written down: what the agent saw, what was done, and what the expert would have done.

The expert acts, disturbed now and then; or a planner does, and the expert only says what it should have done (DAgger,
arXiv 1011.0686): so a planner learns what to do where its own mistakes lead.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from envs.fact import Fact
from envs.outcome import DONE as WELL
from envs.setting import Episode, Expert, Knowledge, Setting, Task, goal_reached
from envs.world_spec import WorldSpec
from planners.base import DONE, Planner, TaskResult
from planners.training.rollout_files import FactRecord, Rollout, StepRecord, TaskRecord

DISTURBED = 0.6  # share of tasks in which a share of the expert's steps is random
LASTING = 0.5  # chance that a random step is followed by another: a wrong turn is seldom just one step
ASTRAY = 12  # steps against the expert's advice after which it takes over


@dataclass(frozen=True, slots=True)
class Source:
    """Episodes of one house to record, made when they are asked for: a graph takes a megabyte.

    Several episodes are one trial in the words of several annotators; one is rephrased.
    """

    world: WorldSpec
    episodes: Sequence[Episode]
    wordings: int = 1

    def told(self, rng: random.Random) -> tuple[Episode, list[list[str]]]:
        """The episode, with several distinct wordings of each of its tasks, its own among them."""
        first, *others = self.episodes
        if others:
            return first, [[episode.tasks[0].instruction for episode in self.episodes]]
        return first, [self._wordings(first, task, rng) for task in first.tasks]

    def _wordings(self, episode: Episode, task: Task, rng: random.Random) -> list[str]:
        reworded = (self.world.reword(episode, task, rng) for _ in range(self.wordings - 1))
        return list(dict.fromkeys([task.instruction, *reworded]))


@dataclass(frozen=True, slots=True)
class Play:
    """An episode as it is being played."""

    setting: Setting
    house: Any
    knowledge: Knowledge
    expert: Expert

    def admissible(self) -> tuple[str, ...]:
        return self.setting.space.admissible(self.house, self.knowledge)


class Recorder:
    """Plays episodes of one setting. The label of a step is always the expert's choice."""

    def __init__(
        self, skills: str, observability: str, perturb: float, seed: int, planner: Planner | None = None
    ) -> None:
        """``perturb`` is how likely a row of random steps begins in disturbed tasks; ``planner`` acts in the expert's
        place.
        """
        self.skills, self.observability, self.perturb = skills, observability, perturb
        self._planner = planner
        self._rng = random.Random(seed)
        self._lost = False  # was the last step a random one?

    def rollout(self, source: Source) -> Rollout:
        episode, wordings = source.told(self._rng)
        setting = source.world.recorded(self.skills, self.observability, episode, self._rng)
        house = setting.begin(episode)
        play = Play(setting, house, setting.knowledge(house), setting.expert())
        said = [] if self._planner is None else [self._rng.choice(texts) for texts in wordings]
        tasks: list[TaskRecord] = []
        for task, texts in zip(episode.tasks, wordings, strict=True):
            house.begin_task()
            self._begin(said, tasks)
            tasks.append(self._task(play, task, texts, source.world.goal_text(task)))
        return Rollout(episode.id, self.skills, self.observability, tuple(tasks))

    def _begin(self, said: Sequence[str], before: Sequence[TaskRecord]) -> None:
        """Tell the planner its next task, and how the last one ended."""
        if self._planner is None:
            return
        if before:
            number, last = len(before), before[-1]
            self._planner.finish_task(TaskResult(said[number - 1], last.success, len(last.steps)), said[number])
        else:
            self._planner.reset(said[0], self.skills)

    def _task(self, play: Play, task: Task, texts: Sequence[str], goal: str) -> TaskRecord:
        first, steps, self._lost = self._news(play), [], False
        rate = self.perturb if self._rng.random() < DISTURBED else 0.0
        while len(steps) < play.setting.max_steps:
            label = play.expert.act(play.house, task, play.knowledge)
            astray = sum(step.skill != step.label for step in steps)
            skill = self._choice(play, label, rate, astray)
            outcome = WELL if skill == DONE else play.setting.space.execute(play.house, skill)
            if self._planner is not None:
                self._planner.feedback(skill, outcome.ok or play.setting.hides_failures, outcome.message)
            facts = () if skill == DONE else self._news(play)
            steps.append(StepRecord(skill, label, outcome.ok, outcome.message, facts))
            if skill == DONE:
                break
        success = goal_reached(play.setting, play.house, task)
        return TaskRecord(tuple(texts), first, tuple(steps), success, goal)

    def _news(self, play: Play) -> tuple[FactRecord, ...]:
        """What the agent has learnt since the last call."""
        facts = play.knowledge.update()
        if self._planner is not None:
            self._planner.observe(facts)
        return _records(facts)

    def _choice(self, play: Play, label: str, rate: float, astray: int) -> str:
        """What is done where the expert advises ``label``. Only the expert ends a task: what follows is worth more.

        A planner is asked at every step, whatever it says counts for: its transcript has its questions, too.
        """
        decided = label if self._planner is None else self._planner.decide(play.admissible(), {}).skill
        if label == DONE:
            return DONE
        chosen = label
        if self._planner is not None:
            chosen = decided if astray < ASTRAY else label
        elif self._rng.random() < (LASTING if self._lost else rate):
            chosen = self._any(play) or label
        self._lost = rate > 0 and chosen != label
        return label if chosen == DONE else chosen

    def _any(self, play: Play) -> str | None:
        """A random skill, each verb as likely as another: of most skills there would be little but "go to"."""
        verbs: dict[str, list[str]] = defaultdict(list)
        for skill in play.admissible():
            if skill != DONE:
                verbs[skill.split()[0]].append(skill)
        return self._rng.choice(verbs[self._rng.choice(sorted(verbs))]) if verbs else None


def _records(facts: Sequence[Fact]) -> tuple[FactRecord, ...]:
    return tuple(FactRecord(f.id, f.category, f.type, f.place, f.holds, f.states, f.gone, f.sees) for f in facts)
