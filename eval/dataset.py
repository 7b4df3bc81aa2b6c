"""Rollouts for training: ``python -m eval.dataset --out FOLDER [--data json_2.1.0]``.

The scripted expert acts in generated houses of both worlds and, where given, in ALFRED's official train split. A share
of its steps is replaced by random skills; the label stays the expert's, so that a planner learns to recover. What
ALFRED's annotators wrote, step by step too, goes into lessons. A file NAME.json beside them says how they were made.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from rich.progress import track

from envs.alfred.lessons import told
from envs.alfred.trajectories import Corpus
from envs.fact import Fact
from envs.setting import OBSERVABILITIES, Episode, Expert, Knowledge, Setting, Task, succeeded
from envs.worlds import WORLDS, World, world_of
from keep_agent.errors import ConfigError, DataError
from keep_agent.guard import guarded
from keep_agent.loop import DONE
from memory.disk.atomic import write_atomic
from planners.lessons import ENDING, Lesson, write_lessons
from planners.records import FactRecord, Rollout, StepRecord, TaskRecord, write_rollouts

SETTINGS = ("lota+full", "grounded+partial")
SKILLS = ("lota", "grounded")
PER_FILE = 1000


def _facts(facts: Sequence[Fact]) -> tuple[FactRecord, ...]:
    return tuple(FactRecord(f.id, f.category, f.type, f.place, f.holds, f.states, f.gone, f.sees) for f in facts)


@dataclass(frozen=True, slots=True)
class Source:
    """Episodes of one house to record, made when they are asked for: a graph takes a megabyte.

    Several episodes are one trial in the words of several annotators; one is rephrased.
    """

    world: World
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


class Recorder:
    """Plays episodes with the expert, perturbed now and then, and records what the agent would see."""

    def __init__(self, skills: str, observability: str, perturb: float, seed: int) -> None:
        self.skills, self.observability, self.perturb = skills, observability, perturb
        self._rng = random.Random(seed)

    def rollout(self, source: Source) -> Rollout:
        episode, wordings = source.told(self._rng)
        setting = source.world.recorded(self.skills, self.observability, episode, self._rng)
        house = setting.begin(episode)
        play = Play(setting, house, setting.knowledge(house), setting.expert())
        tasks = []
        for task, texts in zip(episode.tasks, wordings, strict=True):
            house.begin_task()
            tasks.append(self._task(play, task, texts))
        return Rollout(episode.id, self.skills, self.observability, tuple(tasks))

    def _task(self, play: Play, task: Task, texts: Sequence[str]) -> TaskRecord:
        setting, house, knowledge = play.setting, play.house, play.knowledge
        first, steps = _facts(knowledge.update()), []
        rate = self.perturb if self._rng.random() < 0.6 else 0.0
        while len(steps) < setting.max_steps:
            label = play.expert.act(house, task, knowledge)
            skill = label
            if label != DONE and self._rng.random() < rate:
                skill = self._rng.choice(
                    [s for s in setting.space.admissible(house, knowledge) if s != DONE] or [label]
                )
            if skill == DONE:
                steps.append(StepRecord(skill, label, "", ()))
                break
            outcome = setting.space.execute(house, skill)
            steps.append(StepRecord(skill, label, "" if outcome.ok else outcome.message, _facts(knowledge.update())))
        return TaskRecord(tuple(texts), first, tuple(steps), succeeded(setting, house, task))


def generated(world: World, count: int, first: int, wordings: int, stream: int = 0) -> Iterator[Source]:
    """Houses of a world's embedded train split, each with a ``stream`` of so many tasks.

    0: two thirds single tasks, one third streams of up to four.
    """
    mixed = ((1, 0.0, 0.66), (2, 0.66, 0.78), (3, 0.78, 0.9), (4, 0.9, 1.0))
    for length, low, high in ((stream, 0.0, 1.0),) if stream else mixed:
        start = round(first * high) - round(first * low)
        stop = start + round(count * high) - round(count * low)
        episodes = world.training(None, stream=length, limit=max(1, stop))
        yield from (Source(world, episodes[number : number + 1], wordings) for number in range(start, stop))


def official(data: str) -> Iterator[Source]:
    """Trials of ALFRED's official train split, each with all its annotations."""
    world = world_of(WORLDS["alfred"])
    episodes = world.training(data)
    number = 0
    for _, trial in groupby(episode.tasks[0].id for episode in episodes):
        count = len(list(trial))
        yield Source(world, episodes[number : number + count])
        number += count


def lessons(data: str) -> Iterator[Lesson]:
    """All annotations of ALFRED's official train split, with what they mean."""
    return (Lesson(one.text, one.goal, one.steps) for one in told(Corpus(data), "train"))


def _write(out: Path, name: str, sources: Sequence[Source], recorder: Recorder) -> tuple[int, int]:
    rollouts = [recorder.rollout(source) for source in sources]
    kept = [r for r in rollouts if recorder.perturb or all(task.success for task in r.tasks)]
    write_rollouts(out / f"{name}.jsonl.gz", kept)
    return len(kept), sum(task.success for r in kept for task in r.tasks)


def _setting(text: str) -> tuple[str, str]:
    skills, _, observability = text.partition("+")
    if skills not in SKILLS or observability not in OBSERVABILITIES:
        known = ", ".join(f"{s}+{o}" for s in SKILLS for o in OBSERVABILITIES)
        raise ConfigError(f"--settings {text} is unknown; choose from {known}")
    return skills, observability


def _record(file: Path, args: argparse.Namespace) -> None:
    """Write down how the rollouts are made. Raises ConfigError if the folder holds some made otherwise."""
    made = {key: value for key, value in vars(args).items() if key not in ("out", "name", "data")}
    made = {key: value for key, value in made.items() if key != "stream" or value}  # folders older than the setting
    if args.worlds == ["alfred"]:
        del made["worlds"]  # as in folders from before there was another
    made["official"] = bool(args.data)
    if file.exists() and (old := _settings_in(file)) != made:
        keys = sorted(key for key in made.keys() | old.keys() if made.get(key) != old.get(key))
        changed = ", ".join(f"{key}={made.get(key)} (was {old.get(key)})" for key in keys)
        raise ConfigError(f"rollouts of {file} were made otherwise: {changed}; choose another --name or --out")
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, json.dumps(made, indent=1) + "\n")


def _settings_in(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{file} cannot be read ({error}); choose another --name or --out") from error


def run(args: argparse.Namespace) -> None:
    settings, out = [_setting(text) for text in args.settings], Path(args.out)
    for name, low in (("houses", 0), ("first", 0), ("trials", 0), ("wordings", 1), ("stream", 0)):
        if (value := getattr(args, name)) is not None and value < low:
            raise ConfigError(f"--{name} {value} is too few; use {low} or more")
    if not 0 <= args.perturb <= 1:
        raise ConfigError(f"--perturb {args.perturb} is no share; use 0 to 1")
    rng = random.Random(args.seed)
    worlds = [world_of(WORLDS[name]) for name in args.worlds]
    houses = (generated(world, args.houses, args.first, args.wordings, args.stream) for world in worlds)
    sources = [source for found in houses for source in found]
    if args.data:
        sources += islice(official(args.data), args.trials)
    rng.shuffle(sources)
    _record(out / f"{args.name}.json", args)
    if args.data and not (file := out / f"{args.name}{ENDING}").exists():
        print(f"{file.name}: {write_lessons(file, lessons(args.data))} annotations", flush=True)
    jobs = [(s, number) for number in range(0, len(sources), PER_FILE) for s in settings]
    for (skills, observability), number in track(jobs, description="rollouts"):
        name = f"{args.name}-{skills}-{observability}-{number // PER_FILE:03d}"
        if (out / f"{name}.jsonl.gz").exists():
            continue
        recorder = Recorder(skills, observability, args.perturb, args.seed + number)
        kept, won = _write(out, name, sources[number : number + PER_FILE], recorder)
        print(f"{name}: {kept} houses, {won} tasks solved", flush=True)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", required=True, help="folder for *.jsonl.gz files; existing files are kept (resumes)")
    p.add_argument("--data", default="", help="official json_2.1.0 folder; its train split is added")
    p.add_argument("--trials", type=int, default=None, help="at most so many official trials")
    p.add_argument("--worlds", nargs="+", choices=WORLDS, default=list(WORLDS), help="generated worlds (default: all)")
    p.add_argument("--houses", type=int, default=6000, help="generated houses of each world (default 6000)")
    p.add_argument("--first", type=int, default=0, help="first generated house")
    p.add_argument("--stream", type=int, default=0, help="tasks of each generated house (default: one to four, mixed)")
    p.add_argument("--settings", nargs="+", default=list(SETTINGS), help="skills+observability")
    p.add_argument(
        "--perturb", type=float, default=0.1, help="share of random steps in perturbed rollouts (default 0.1)"
    )
    p.add_argument("--wordings", type=int, default=4, help="phrasings of each generated task")
    p.add_argument("--name", default="rollouts", help="prefix of the files")
    p.add_argument("--seed", type=int, default=0)
    return p


def main() -> None:
    args = parser().parse_args()
    sys.exit(guarded(lambda: run(args)))


if __name__ == "__main__":
    main()
