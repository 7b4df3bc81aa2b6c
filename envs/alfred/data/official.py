"""Episodes of official ALFRED data (json_2.1.0): one per annotation, a person's description of a trial."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from envs.alfred.data.mining import Survey
from envs.alfred.data.start import build_scene
from envs.alfred.data.survey_cache import load_survey
from envs.alfred.data.trajectories import Corpus, Trajectory
from envs.alfred.scene import Episode, Scene, Task
from envs.splits import LazyEpisodes, draw_entries
from keep_agent.errors import DataError, check_once
from keep_agent.files import read_json

log = logging.getLogger(__name__)

SPLITS_FILE = "oct21.json"
_CACHED_SCENES = 64  # scenes kept in memory; the annotations of a trial share its scene


class OfficialEpisodes(LazyEpisodes[Episode]):
    """Episodes of one split, ordered by task, trial and annotation; scenes are built on access."""

    def __init__(self, entries: Sequence[tuple[Trajectory, int]], survey: Survey) -> None:
        """Serve ``entries``: trajectories with the number of the annotation to use."""
        super().__init__(self._episode, entries)
        self._survey = survey
        self._scenes: dict[str, Scene] = {}  # by trial

    def _episode(self, entry: tuple[Trajectory, int]) -> Episode:
        trajectory, annotation = entry
        instruction = trajectory.instructions[annotation]
        task = make_task(trajectory.task_type, trajectory.params, instruction=instruction, id=trajectory.trial)
        return Episode(f"{trajectory.trial}-{annotation}", self._scene(trajectory, task), (task,))

    def _scene(self, trajectory: Trajectory, task: Task) -> Scene:
        scene = self._scenes.pop(trajectory.trial, None) or build_scene(trajectory, task, self._survey)
        self._scenes[trajectory.trial] = scene  # most recent last
        if len(self._scenes) > _CACHED_SCENES:
            del self._scenes[next(iter(self._scenes))]
        return scene


def load_official(path: str | Path, split: str, seed: int = 0, limit: int | None = None) -> OfficialEpisodes:
    """Return the episodes of a split, one per annotation; ``limit`` of them, if given, are drawn with ``seed``.

    If splits/oct21.json (in or beside the folder) contains the split, only the annotations listed there are loaded.
    Raises DataError for missing or damaged files, ConfigError for an unknown split.
    """
    corpus = Corpus(path)
    entries = [(trial, number) for trial in corpus.trajectories(split) for number in range(len(trial.instructions))]
    names = (f"{trajectory.trial}-{number}" for trajectory, number in entries)
    check_once(names, "annotation", f"keep one of its trials in {split}")
    if not entries:
        raise DataError(f"split {split!r} in {corpus.root} has no annotations; restore it from the ALFRED download")
    return OfficialEpisodes(draw_entries(_select(corpus, split, entries), limit, seed), load_survey(corpus))


def make_task(kind: str, params: Mapping[str, Any], **texts: str) -> Task:
    """Return the task of type ``kind`` with ALFRED's ``pddl_params``; ``texts`` may give its instruction and id."""
    return Task(
        type=kind,
        object_target=params["object_target"],
        parent_target=params["parent_target"] or "",
        toggle_target=params["toggle_target"] or "",
        mrecep_target=params["mrecep_target"] or "",
        sliced=bool(params["object_sliced"]),
        **texts,
    )


def _select(corpus: Corpus, split: str, entries: list[tuple[Trajectory, int]]) -> list[tuple[Trajectory, int]]:
    """Return the entries in the splits file, or all if it lacks the split. Raises DataError if it has none of them."""
    paths = (folder / "splits" / SPLITS_FILE for folder in (corpus.root, corpus.root.parent))
    path = next(filter(Path.is_file, paths), None)
    content = read_json(path, "restore or delete it") if path else {}
    try:
        if (rows := content.get(split)) is None:
            return entries
        pairs = {(row["task"], row["repeat_idx"]) for row in rows}
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is not a splits file ({error}); restore or delete it") from error
    matches = [(trajectory, number) for trajectory, number in entries if (trajectory.name, number) in pairs]
    if not matches:
        raise DataError(f"{path} lists none of the {len(entries)} annotations of {split!r}; restore or delete it")
    if len(matches) < len(pairs):
        log.info("%s: %d of the splits file's %d annotations are present", split, len(matches), len(pairs))
    return matches
