"""Step model: the data that a page draws for one step, from the trace entries up to that step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from keep_agent.files import unpacking
from keep_agent.rollout.results import PARTS, field_dict
from keep_agent.rollout.trace import Entry
from keep_agent.viewer.episode_filters import episode_row
from keep_agent.viewer.runs import Run
from keep_agent.viewer.segments import SegmentView, segment_views
from keep_agent.viewer.trace_index import EpisodeIndex
from keep_agent.viewer.world import KnownWorld, known_world


@dataclass(frozen=True, slots=True)
class PromptView:
    """Prefill of a prompt. Start and end times are in ms since the first load or computation began."""

    rows: int
    context: int  # rows before the memory
    query: int  # first row of the query
    active_rows: tuple[int, ...]  # number of computed rows, per layer
    segments: tuple[SegmentView, ...]
    units: int
    units_hit: int
    hops: tuple[Entry, ...]  # choice at each layer, with the keys layer, hops, edges
    loads: tuple[Sequence[Any], ...]  # each: first layer, layer after the last, start, end, bytes
    computes: tuple[Sequence[Any], ...]  # each: layer, attention | importance | mlp, start, end
    flips: tuple[Entry, ...]  # segment groups that became static or dynamic
    cold: bool  # first prompt after a reset
    parts: tuple[tuple[str, float], ...]  # parts of the time to the first token: (name, ms)
    ttft_ms: float
    score_ms: float


@dataclass(frozen=True, slots=True)
class StepView:
    """One step. ``number`` counts from 0 over the whole episode, ``step`` within its task."""

    number: int
    task: int
    step: int
    instruction: str
    skill: str
    ok: bool
    message: str
    goal: tuple[int, int] | None  # number of goal conditions met after the step, and of all
    understood: str  # the goal that the model wrote for the instruction
    focus: str  # type, name and place of the next target, as the model wrote them
    scores: tuple[tuple[str, float], ...]
    prompt: PromptView | None  # None if the planner has no model
    world: KnownWorld
    before: int | None  # number of the picture before the skill, -1: taken at the reset; None: there is no picture
    after: int | None  # number of the picture after the skill; None: there is no picture
    restarted: bool
    end: Entry | None  # outcome of the task if it ended here
    crash: str  # traceback if the episode crashed after this step

    def to_json(self) -> str:
        """Encode as compact JSON. Raises ValueError for NaN and infinities."""
        return json.dumps(self, default=field_dict, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def step_view(run: Run, episode: EpisodeIndex, step: int) -> StepView:
    """Return the view of a step. Raises DataError for a missing step, or an entry without a required field."""
    entry = run.index.entry(episode, step)
    with unpacking(f"{run.index.path}:{episode.positions[step].number}", "not a valid step", "run it again"):
        return _view(episode, step, entry)


def step_json(run: Run, episode: EpisodeIndex, step: int) -> str:
    """Return `StepView.to_json` of a step. Raises DataError as `step_view` does, also for NaN and infinities."""
    view = step_view(run, episode, step)
    with unpacking(f"{run.index.path}:{episode.positions[step].number}", "not a valid step", "run it again"):
        return view.to_json()


def _view(episode: EpisodeIndex, step: int, entry: Entry) -> StepView:
    outline, extra = episode.outlines[step], entry.get("extra", {})
    is_last = step == len(episode.positions) - 1
    is_task_end = is_last or episode.outlines[step + 1].task != outline.task
    return StepView(
        number=step,
        **{name: getattr(outline, name) for name in ("task", "step", "skill", "ok", "goal", "restarted")},
        instruction=str(entry.get("instruction", "")),
        message=str(entry.get("message", "")),
        understood=str(extra.get("understood", "")),
        focus=str(extra.get("focus", "")),
        scores=tuple((str(skill), float(score)) for skill, score in entry.get("scores", ())),
        prompt=_prompt(entry, episode, step) if "segments" in entry else None,
        world=known_world(episode.facts, step),
        before=step - 1 if step - 1 in episode.frames else None,
        after=step if step in episode.frames else None,
        end=next((end for end in episode.task_ends if is_task_end and end.get("task") == outline.task), None),
        crash=_traceback(episode) if is_last else "",
    )


def _prompt(entry: Entry, episode: EpisodeIndex, step: int) -> PromptView:
    timings, units = entry.get("timings", {}), entry.get("units", ())
    return PromptView(
        rows=len(entry["token_ids"]),
        context=entry["context"],
        query=entry["query"],
        active_rows=tuple(entry["active_rows"]),
        segments=segment_views(entry, episode.texts, step),
        units=len(units),
        units_hit=sum(unit["hit"] for unit in units),
        **{name: tuple(entry.get(name, ())) for name in ("hops", "loads", "computes", "flips")},
        cold=bool(entry.get("cold")),
        parts=tuple((part, timings[part]) for part in PARTS if part in timings),
        ttft_ms=timings.get("ttft", 0.0),
        score_ms=timings.get("score", 0.0),
    )


def _traceback(episode: EpisodeIndex) -> str:
    return str(episode.crash.get("traceback", "")) if episode.crash else ""


def overview(run: Run, episode: EpisodeIndex, since: int = 0) -> Mapping[str, Any]:
    """Return an episode's summary for a page, with the step outlines from ``since`` on."""
    return asdict(episode_row(run.key, run.method, episode)) | {
        "outlines": [asdict(step) for step in episode.outlines[since:]],
        "since": since,
        "problem": run.index.problem,
        "crash": _traceback(episode),
        "opening": -1 if -1 in episode.frames else None,
    }
