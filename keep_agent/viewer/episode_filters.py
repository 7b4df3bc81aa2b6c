"""The list of episodes, and what it can be narrowed to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from keep_agent.viewer.runs import Run
from keep_agent.viewer.trace_index import EpisodeIndex

SUCCEEDED, FAILED, CRASHED, OPEN = "succeeded", "failed", "crashed", "open"
STATUSES = (SUCCEEDED, FAILED, CRASHED, OPEN)


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """One episode of one run, for a list."""

    run: str
    method: str
    episode: str
    instruction: str  # the first task's
    tasks: int
    types: tuple[str, ...]
    steps: int
    failures: int  # skills that did not work
    goal: tuple[int, int] | None  # conditions met and asked over the tasks that ended; else the last step's
    status: str  # one of STATUSES


@dataclass(frozen=True, slots=True)
class Filters:
    """What a list is narrowed to; empty: not at all."""

    status: str = ""
    method: str = ""
    type: str = ""
    text: str = ""  # anywhere in run, episode or instruction

    def keep(self, row: EpisodeRow) -> bool:
        failed = row.status in (FAILED, CRASHED) if self.status == FAILED else row.status == self.status
        words = f"{row.run} {row.episode} {row.instruction}".casefold()
        return (
            (not self.status or failed)
            and (not self.method or row.method == self.method)
            and (not self.type or self.type in row.types)
            and self.text.casefold() in words
        )


def status(episode: EpisodeIndex) -> str:
    """A crash is a failure with a name of its own; ``open`` as long as a task has not ended."""
    if episode.crash is not None:
        return CRASHED
    if any(not end.get("success") for end in episode.ends):
        return FAILED
    asked = len(episode.opening.get("tasks", ()))
    return SUCCEEDED if asked and len(episode.ends) >= asked else OPEN


def episode_rows(runs: Iterable[Run]) -> list[EpisodeRow]:
    """All episodes of the runs, as far as their traces can be read."""
    return [row(run.key, run.method, episode) for run in runs for episode in run.index.refresh().values()]


def row(run: str, method: str, episode: EpisodeIndex) -> EpisodeRow:
    tasks = episode.opening.get("tasks", ())
    return EpisodeRow(
        run=run,
        method=method,
        episode=episode.key,
        instruction=str(tasks[0].get("instruction", "")) if tasks else episode.asked,
        tasks=max(len(tasks), len(episode.ends)),
        types=tuple(dict.fromkeys(str(task.get("type", "")) for task in tasks)),
        steps=len(episode.places),
        failures=sum(not step.ok for step in episode.outlines),
        goal=_goal(episode),
        status=status(episode),
    )


def _goal(episode: EpisodeIndex) -> tuple[int, int] | None:
    if episode.ends:
        met, total = (sum(int(end.get(key, 0)) for end in episode.ends) for key in ("met", "total"))
        return met, total
    return episode.outlines[-1].goal if episode.outlines else None
