"""What every step leaves behind: JSON lines of a versioned schema that a viewer can live from.

Each line has ``v`` (SCHEMA), ``event`` and ``episode``. Events: ``episode`` (opens one), ``step``, ``task`` (a task
ended), ``crash`` (with the traceback). docs/evaluation.md lists the fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keep_agent.errors import DataError
from keep_agent.rollout.results import StepNumbers, TaskOutcome
from keep_agent.rollout.run_folder import trace_lines

if TYPE_CHECKING:
    from envs.setting import Episode
    from memory.prompt.report import Prefill
    from planners.base import Decision
    from planners.prompts.text import FactView


SCHEMA = 1
Entry = dict[str, Any]  # a line of JSON


def _entry(event: str, episode: str, **fields: Any) -> Entry:
    return {"v": SCHEMA, "event": event, "episode": episode, **fields}


def episode_entry(index: int, episode: Episode, skills: str, notes: Mapping[str, Any] | None = None) -> Entry:
    """``notes``: what the world says of the beginning, fit for JSON."""
    tasks = [{"id": task.id, "type": task.type, "instruction": task.instruction} for task in episode.tasks]
    noted = {"notes": dict(notes)} if notes else {}
    return _entry("episode", episode.id, index=index, skills=skills, tasks=tasks) | noted


def agent_entry(name: str) -> Entry:
    """Opens the trace of an agent that is told its tasks as it goes."""
    return _entry("episode", name, index=0, skills="", tasks=[])


def marks(frame: str, restarted: bool) -> Entry:
    """What an entry gets from a simulator, without the fields that say nothing."""
    return ({"frame": frame} if frame else {}) | ({"restarted": True} if restarted else {})


def task_entry(episode: str, number: int, outcome: TaskOutcome) -> Entry:
    return _entry("task", episode, task=number, **asdict(outcome))


def crash_entry(episode: str, task: int, traceback: str) -> Entry:
    return _entry("crash", episode, task=task, traceback=traceback)


def step_entry(
    episode: str,
    numbers: StepNumbers,
    step: int,
    *,
    instruction: str,
    facts: Sequence[FactView],
    decision: Decision,
    ok: bool,
    message: str,
    goal: tuple[int, int] | None = None,
) -> Entry:
    """One turn: what was seen, how the prompt was made, what was chosen and what became of it.

    ``goal``: conditions met after it and their number, where somebody knows.
    """
    entry = _entry(
        "step",
        episode,
        task=numbers.task,
        step=step,
        instruction=instruction,
        facts=[fact_entry(fact) for fact in facts],
        skill=decision.skill,
        ok=ok,
        message=message,
        scores=[[skill, round(score, 4)] for skill, score in decision.scores],
    )
    if goal is not None:
        entry["goal"] = list(goal)
    if decision.extra:
        entry["extra"] = dict(decision.extra)
    if decision.prefill is not None:
        entry |= prompt_entry(decision.prefill)
        times = {**(numbers.parts or {}), "ttft": numbers.ttft_ms, "score": numbers.score_ms}
        entry["timings"] = {name: round(value, 3) for name, value in times.items()}
    return entry


def prompt_entry(prefill: Prefill) -> Entry:
    """How the prompt came about: tokens, units, segments, hops, and what was loaded and computed when.

    Rows are prompt rows, intervals milliseconds since the first of them, edges name segments ("" is the query).
    """
    layout, trace = prefill.layout, prefill.trace
    names = [span.segment for span in layout.segments]
    starts = [interval.start for interval in (*trace.loads, *trace.computes)]
    zero = min(starts, default=0.0)

    def since(moment: float) -> float:
        return round(1e3 * (moment - zero), 3)

    return {
        "token_ids": layout.token_ids.tolist(),
        "context": layout.context,
        "query": layout.query,
        "units": [
            {"kind": u.kind, "start": u.start, "tokens": u.tokens, "hit": u.hit, "block": u.identity[:16]}
            for u in prefill.units
        ],
        "segments": [
            {"id": span.segment, "start": span.start, "stop": span.stop, "last_layer": last}
            for span, last in zip(layout.segments, trace.last_layer, strict=True)
        ],
        "active_rows": list(trace.active_rows),
        "hops": [
            {"layer": h.layer, "hops": h.hops, "edges": [_edge(edge, names) for edge in h.edges]} for h in trace.hops
        ],
        "loads": [[i.first, i.last, since(i.start), since(i.end), i.nbytes] for i in trace.loads],
        "computes": [[i.layer, i.kind, since(i.start), since(i.end)] for i in trace.computes],
        "flips": [{"group": flip.group, "static": flip.static} for flip in prefill.flips],
        "cold": prefill.cold,
    }


def _edge(edge: tuple[int, int, float], names: Sequence[str]) -> list[Any]:
    source, target, mass = edge
    return ["" if source < 0 else names[source], names[target], round(mass, 6)]


def fact_entry(fact: FactView) -> Entry:
    """A fact without the fields that say nothing."""
    row = {"id": fact.id, "category": fact.category, "type": fact.type, "place": fact.place, "holds": fact.holds}
    row |= {"sees": list(fact.sees), "states": list(fact.states), "gone": fact.gone}
    return {key: value for key, value in row.items() if value}


def read_trace(path: Path) -> Iterator[Entry]:
    """Entries of a run's trace. Raises DataError for a line that is damaged, missing or of another schema."""
    for line in trace_lines(path):
        yield checked(line.value, path, line.number)


def checked(entry: Entry, path: Path, number: int) -> Entry:
    """What a line of a trace holds, or DataError for another schema."""
    version = entry.get("v")
    if version != SCHEMA:
        raise DataError(f"{path}:{number} has schema {version!r}, this reads {SCHEMA}: run it again")
    return entry


def step_numbers(decision: Decision, task: int, wall_ms: float) -> StepNumbers:
    """Numbers of one decision; those of a planner without a model are zero.

    ``wall_ms`` is what observing and deciding took by the clock on the wall. Whatever of it the memory did not time
    itself, before the logits (facts to text, the query's tokens), belongs to the part ``update``, so that ``ttft_ms``
    leaves nothing out; harvesting and scoring come after the logits. ``ttft_overlapped_ms`` leaves out the encoding of
    invalidated blocks, which a robot can do while it moves; a cold start has nothing to hide behind and counts in full.
    """
    prefill = decision.prefill
    if prefill is None:
        return StepNumbers(task=task)
    times = prefill.timings
    ttft = max(wall_ms - prefill.after_ms - decision.score_ms, times.total)
    return StepNumbers(
        task=task,
        **asdict(prefill.counts),
        parts={**asdict(times), "update": times.update + ttft - times.total},
        ttft_ms=ttft,
        ttft_overlapped_ms=ttft - (0.0 if prefill.cold else times.encode),
        score_ms=decision.score_ms,
        score_tokens=decision.score_tokens,
        raw_reads=prefill.reads.raw,
        live_reads=prefill.reads.live,
        cold=prefill.cold,
        flips=len(prefill.flips),
    )
