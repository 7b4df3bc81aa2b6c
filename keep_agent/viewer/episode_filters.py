"""Rows and filters of the episode list."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from keep_agent.viewer.runs import Run
from keep_agent.viewer.trace_index import EpisodeIndex

SUCCEEDED, FAILED, CRASHED, OPEN = "succeeded", "failed", "crashed", "open"
STATUSES = {SUCCEEDED: "✓", FAILED: "✗", CRASHED: "✗", OPEN: "…"}  # each status with its sign


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """Row of the list: one episode of one run."""

    run: str
    method: str
    episode: str
    instruction: str  # of the first task
    tasks: int
    types: tuple[str, ...]
    steps: int
    failures: int  # failed skills
    goal: tuple[int, int] | None  # goal conditions met, and all: of finished tasks; if there are none, at the last step
    status: str  # one of STATUSES


@dataclass(frozen=True, slots=True)
class Filters:
    """Values of the list's filters; an empty value matches all rows."""

    status: str = ""
    method: str = ""
    type: str = ""
    text: str = ""  # substring of run, episode or instruction

    def keep(self, row: EpisodeRow) -> bool:
        statuses = (FAILED, CRASHED) if self.status == FAILED else (self.status,)
        words = f"{row.run} {row.episode} {row.instruction}".casefold()
        return (
            (not self.status or row.status in statuses)
            and (not self.method or row.method == self.method)
            and (not self.type or self.type in row.types)
            and self.text.casefold() in words
        )


def status(episode: EpisodeIndex) -> str:
    """Return the status: failed once a task has failed, open while tasks are left or if the trace lists none."""
    if episode.crash is not None:
        return CRASHED
    if any(not end.get("success") for end in episode.task_ends):
        return FAILED
    tasks = len(episode.opening.get("tasks", ()))
    return SUCCEEDED if tasks and len(episode.task_ends) >= tasks else OPEN


def episode_rows(runs: Iterable[Run]) -> list[EpisodeRow]:
    """Return a row per episode in the readable traces of the runs."""
    return [episode_row(run.key, run.method, episode) for run in runs for episode in run.index.refresh().values()]


def episode_row(run: str, method: str, episode: EpisodeIndex) -> EpisodeRow:
    tasks = episode.opening.get("tasks", ())
    goal = episode.outlines[-1].goal if episode.outlines else None
    if episode.task_ends:
        met, total = (sum(int(end.get(key, 0)) for end in episode.task_ends) for key in ("met", "total"))
        goal = met, total
    return EpisodeRow(
        run=run,
        method=method,
        episode=episode.key,
        instruction=str(tasks[0].get("instruction", "")) if tasks else episode.instruction,
        tasks=max(len(tasks), len(episode.task_ends)),
        types=tuple(dict.fromkeys(str(task.get("type", "")) for task in tasks)),
        steps=len(episode.positions),
        failures=sum(not step.ok for step in episode.outlines),
        goal=goal,
        status=status(episode),
    )
