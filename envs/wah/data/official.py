"""Loader of tasks from files: in the format of WAH-NL (LoTA-Bench's data), or as plans (`envs.wah.data.plans`).

A file of WAH-NL (``wah_nl_test.json``) is a list of records: task_id, task_name, env_id, init_graph, init_room,
task_goal, nl_instructions. Instructions are generated for records without any, such as Watch-And-Help's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import call
from pathlib import Path
from random import Random
from typing import Any

from envs.splits import LazyEpisodes, draw_entries
from envs.wah.apartments.placing import Goal
from envs.wah.apartments.possible import check_apartment, check_room
from envs.wah.data.formats import read_graph
from envs.wah.data.plans import has_plans, load_plans
from envs.wah.data.records import check_goal, field_of, instructions_of, json_files, number_of, records_of, task_of
from envs.wah.language.phrases import phrase
from envs.wah.scene import Episode, Scene, Task
from keep_agent.errors import ConfigError, DataError, check_once

DEFAULT_SPLIT = "test"  # also the split name of data without splits
EpisodeMaker = Callable[[], Episode]


def load_official(data: str | Path, split: str, seed: int = 0, limit: int | None = None) -> Sequence[Episode]:
    """Load one episode per instruction of a file, or of a folder's files whose names contain ``split``.

    A single file, or a folder of plans and apartments, has no splits, so ``split`` must be the default. ``seed``
    determines the layout of plans and the draw of ``limit`` episodes. Raises ConfigError for a missing path or split,
    DataError for damaged files.
    """
    path = Path(data)
    if not path.exists():
        raise ConfigError(f"env.data={data} does not exist; name a file or folder of Watch-And-Help tasks")
    if split != DEFAULT_SPLIT and (path.is_file() or has_plans(path)):
        raise ConfigError(f"{path} has no splits, but split={split!r} is set; leave env.split out")
    makers = load_plans(path, seed) if has_plans(path) else _records(path, split)
    return LazyEpisodes(call, draw_entries(makers, limit, seed))


def _records(path: Path, split: str) -> list[EpisodeMaker]:
    files = [path] if path.is_file() else json_files(path, split)
    if not files:
        raise ConfigError(
            f"{path} has no *.json or *.json.gz with {split!r} in its name; name a file, or another split"
        )
    records = [(f"{file.name.split('.json')[0]}-{row.get('task_id', number)}", row, where)
               for file in files for number, (row, where) in enumerate(records_of(file))]  # fmt: skip
    check_once([name for name, *_ in records], f"{path}: task", "give each task_id once")
    return [maker for name, row, where in records for maker in _makers(row, where, name)]


def _makers(row: Mapping[str, Any], where: str, identity: str) -> list[EpisodeMaker]:
    kind, goal = task_of(row, where)
    instructions = instructions_of(row, where) or [_phrase(kind, goal, identity, where)]
    graph, room = field_of(row, ("init_graph",), where), row.get("init_room")
    apartment = read_graph(graph, where)
    check_goal(goal, where, partial(check_apartment, apartment))
    check_room(apartment, room, where)
    scene = Scene(identity, graph, room, number_of(row, "env_id", where))
    tasks = [Task(kind, goal, text, identity) for text in instructions]
    return [partial(Episode, f"{identity}-{number}", scene, (task,)) for number, task in enumerate(tasks)]


def _phrase(kind: str, goal: Goal, identity: str, where: str) -> str:
    try:
        return phrase(kind, goal, Random(identity))
    except DataError as error:
        raise DataError(f"{where} has no nl_instructions, and none can be generated ({error}); add some") from error
