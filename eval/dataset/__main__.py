"""Rollouts for training: ``python -m eval.dataset --out FOLDER [--data json_2.1.0]``.

The scripted expert acts in generated houses of the --worlds, and with --data in ALFRED's official train split. Some
of its steps are replaced by random steps, one or several in a row. The label is always the expert's skill, so that a
planner learns to recover. With --data the command also writes lessons: ALFRED's annotated instructions with their
goals. NAME.json records the settings (NAME is set by --name).

With --acting a planner chooses the skills instead: `--acting planner=prefix_cache model=RUN`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from rich.progress import track

from envs.alfred.data.trajectories import Corpus
from envs.alfred.language.lessons import annotations
from envs.setting import OBSERVABILITIES
from envs.worlds import GENERATED, WORLDS, WorldSpec
from eval.common.options import command_parser
from eval.common.resume import changed_settings, use_threads
from eval.dataset.recorder import HouseEpisodes, RolloutRecorder
from keep_agent.config.compose import compose_settings
from keep_agent.config.factory import make_planner
from keep_agent.config.model_names import expand_model
from keep_agent.config.settings import check_settings
from keep_agent.errors import ConfigError, DataError
from keep_agent.files import read_json
from keep_agent.guard import guarded
from memory.files.atomic import write_atomic
from planners.training.lessons import ENDING, Lesson, write_lessons
from planners.training.rollout_files import write_rollouts

SETTINGS = ("lota+full", "grounded+partial")
SKILLS = ("lota", "grounded")
PER_FILE = 1000  # houses per file
ACTED_PER_FILE = 50  # smaller, since a planner is slow and an interrupt loses the unfinished file


def generated(world: WorldSpec, count: int, first: int, wordings: int, stream: int = 0) -> Iterator[HouseEpisodes]:
    """Yield ``count`` houses from ``first`` on, with ``stream`` tasks each; 0: two thirds have one, others 2 to 4."""
    mixed = ((1, 0.0, 0.66), (2, 0.66, 0.78), (3, 0.78, 0.9), (4, 0.9, 1.0))
    for length, low, high in ((stream, 0.0, 1.0),) if stream else mixed:
        start = round(first * high) - round(first * low)
        stop = start + round(count * high) - round(count * low)
        episodes = world.training(None, stream=length, limit=max(1, stop))
        yield from (HouseEpisodes(world, episodes[number : number + 1], wordings) for number in range(start, stop))


def official(data: str) -> Iterator[HouseEpisodes]:
    """Yield the trials of ALFRED's official train split, each with all its annotations."""
    world = WORLDS["alfred"].spec
    episodes = world.training(data)
    number = 0
    for _, trial in groupby(episode.tasks[0].id for episode in episodes):
        count = len(list(trial))
        yield HouseEpisodes(world, episodes[number : number + count])
        number += count


def _setting(text: str) -> tuple[str, str]:
    skills, _, observability = text.partition("+")
    if skills not in SKILLS or observability not in OBSERVABILITIES:
        known = ", ".join(f"{s}+{o}" for s in SKILLS for o in OBSERVABILITIES)
        raise ConfigError(f"--settings {text} is unknown; choose from {known}")
    return skills, observability


def _recorded_settings(file: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings to record in ``file``. Raises ConfigError if it exists with other settings."""
    settings = {key: value for key, value in vars(args).items() if key not in ("out", "name", "data")}
    for key, default in (("stream", 0), ("acting", []), ("worlds", ["alfred"])):
        if settings[key] == default:
            del settings[key]  # omitted, as in records made before the option existed
    settings["official"] = bool(args.data)
    old = read_json(file, "choose another --name or --out") if file.exists() else settings
    if not isinstance(old, dict):
        raise DataError(f"{file} holds no settings; choose another --name or --out")
    if changes := changed_settings(settings, old):
        text = ", ".join(f"{key}={change}" for key, change in sorted(changes.items()))
        raise ConfigError(f"rollouts of {file} have other settings: {text}; choose another --name or --out")
    return settings


def run(args: argparse.Namespace) -> None:
    settings, out = [_setting(text) for text in args.settings], Path(args.out)
    for name, low in (("houses", 0), ("first", 0), ("trials", 0), ("wordings", 1), ("stream", 0)):
        if (value := getattr(args, name)) is not None and value < low:
            raise ConfigError(f"--{name} {value} is too small; use {low} or more")
    if args.trials and not args.data:
        raise ConfigError(f"--trials {args.trials} draws official trials; give their folder with --data")
    if not 0 <= args.perturb <= 1:
        raise ConfigError(f"--perturb {args.perturb} is not a probability; use 0 to 1")
    record = out / f"{args.name}.json"
    recorded, config, acting = _recorded_settings(record, args), None, " ".join(args.acting)
    if args.acting:
        config = compose_settings("alfred", expand_model(args.acting))
        if config.planner.kind != "kv":
            raise ConfigError(f"--acting {acting} does not name a planner with a model; give planner=NAME model=RUN")
        check_settings(config)
    rng = random.Random(args.seed)
    worlds = [WORLDS[name].spec for name in args.worlds]
    houses = (generated(world, args.houses, args.first, args.wordings, args.stream) for world in worlds)
    sources = list(chain.from_iterable(houses))
    if args.data:
        trials = list(official(args.data))  # sorted by task type, so a subset is drawn at random
        sources += trials if args.trials is None else rng.sample(trials, min(args.trials, len(trials)))
    rng.shuffle(sources)
    size = ACTED_PER_FILE if args.acting else PER_FILE
    jobs = [(s, number) for number in range(0, len(sources), size) for s in settings]
    with ExitStack() as stack:
        planner = None
        if config:
            use_threads(config)
            planner = stack.enter_context(closing(make_planner(config)))
        write_atomic(record, json.dumps(recorded, indent=1) + "\n")  # written after all checks
        if args.data and not (file := out / f"{args.name}{ENDING}").exists():
            lessons = (Lesson(note.text, note.goal, note.steps) for note in annotations(Corpus(args.data), "train"))
            print(f"{file.name}: {write_lessons(file, lessons)} annotations", flush=True)
        for (skills, observability), number in track(jobs, description="rollouts"):
            name = f"{args.name}-{skills}-{observability}-{number // size:03d}"
            if (file := out / f"{name}.jsonl.gz").exists():
                continue
            recorder = RolloutRecorder(skills, observability, args.perturb, args.seed + number, planner)
            rollouts = [recorder.rollout(source) for source in sources[number : number + size]]
            rollouts = [r for r in rollouts if args.perturb or all(task.success for task in r.tasks)]
            write_rollouts(file, rollouts)
            solved = sum(task.success for r in rollouts for task in r.tasks)
            print(f"{name}: {len(rollouts)} houses, {solved} tasks solved", flush=True)


def parser() -> argparse.ArgumentParser:
    p = command_parser(__doc__)
    add = p.add_argument
    perturb = "probability per step that random steps begin, in six of ten tasks (default 0.07)"
    acting = "settings of a planner that acts instead of the expert, as for eval.alfred"
    worlds = {"choices": GENERATED, "default": list(GENERATED), "help": "generated worlds (default: all)"}
    add("--out", required=True, help="folder for *.jsonl.gz files; existing files are kept")
    add("--data", default="", help="folder json_2.1.0 of official ALFRED, whose train split is added")
    add("--trials", type=int, default=None, help="number of official trials, drawn at random (default: all)")
    add("--worlds", nargs="+", **worlds)
    add("--houses", type=int, default=6000, help="generated houses of each world (default 6000)")
    add("--first", type=int, default=0, help="number of the first generated house (default 0)")
    add("--stream", type=int, default=0, help="tasks of each generated house (default: one to four, mixed)")
    add("--settings", nargs="+", default=list(SETTINGS), help=f"SKILLS+OBSERVABILITY (default: {' '.join(SETTINGS)})")
    add("--perturb", type=float, default=0.07, help=perturb)
    add("--acting", nargs="+", default=[], metavar="KEY=VALUE", help=acting)
    add("--wordings", type=int, default=4, help="phrasings of each generated task")
    add("--name", default="rollouts", help="prefix of the files")
    add("--seed", type=int, default=0)
    return p


def main() -> None:
    arguments = parser().parse_args()
    sys.exit(guarded(lambda: run(arguments)))


if __name__ == "__main__":
    main()
