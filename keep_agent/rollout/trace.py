"""Trace of a rollout: JSON lines of a versioned schema, for viewers.

Each line has ``v`` (SCHEMA), ``event`` and ``episode`` (the episode's id). Events: ``episode`` (an episode begins),
``step``, ``task`` (a task has ended), ``crash`` (with the traceback). docs/evaluation.md lists the fields.
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
    from planners.prompts.styles import FactView

SCHEMA = 1
Entry = dict[str, Any]  # one line of the trace


def _entry(event: str, episode: str, **fields: Any) -> Entry:
    return {"v": SCHEMA, "event": event, "episode": episode, **fields}


def episode_entry(index: int, episode: Episode, skills: str, notes: Mapping[str, Any] | None = None) -> Entry:
    """Return the entry that opens an episode. ``notes``: how the simulator's start state differs from the data's."""
    tasks = [{"id": task.id, "type": task.type, "instruction": task.instruction} for task in episode.tasks]
    noted = {"notes": dict(notes)} if notes else {}
    return _entry("episode", episode.id, index=index, skills=skills, tasks=tasks) | noted


def agent_entry(name: str) -> Entry:
    """Return the entry that opens the trace of a server's agent, whose tasks are not yet known."""
    return _entry("episode", name, index=0, skills="", tasks=[])


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
    """Return the entry of one step: facts, prompt, decision and result.

    :param step: number of the step within its task, from 0
    :param goal: number of goal conditions that are met after the step, and their total; None: unknown
    """
    entry = _entry(
        "step", episode, task=numbers.task, step=step, instruction=instruction,
        facts=[fact_entry(fact) for fact in facts], skill=decision.skill, ok=ok, message=message,
        scores=[[skill, round(score, 4)] for skill, score in decision.scores],
    )  # fmt: skip
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
    """Return the fields of a prompt: tokens, units (parts encoded as a whole), segments, hops of attention, times.

    Rows are numbered within the prompt. Times are in ms since the first load or computation began. ``hops`` lists,
    per layer, the attention by which segments are chosen, from the query to segments and on to further segments. An
    edge is [id of the attending segment ("": query), id of the attended segment, mean attention weight].
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
        "hops": [{"layer": h.layer, "hops": h.hops, "edges": [_edge(e, names) for e in h.edges]} for h in trace.hops],
        "loads": [[i.first, i.last, since(i.start), since(i.end), i.nbytes] for i in trace.loads],
        "computes": [[i.layer, i.kind, since(i.start), since(i.end)] for i in trace.computes],
        "flips": [{"group": flip.group, "static": flip.static} for flip in prefill.flips],
        "cold": prefill.cold,
    }


def _edge(edge: tuple[int, int, float], names: Sequence[str]) -> list[Any]:
    source, target, mass = edge
    return ["" if source < 0 else names[source], names[target], round(mass, 6)]


def fact_entry(fact: FactView) -> Entry:
    """Return the non-empty fields of a fact."""
    row = {"id": fact.id, "category": fact.category, "type": fact.type, "place": fact.place, "holds": fact.holds}
    row |= {"sees": list(fact.sees), "states": list(fact.states), "gone": fact.gone}
    return {key: value for key, value in row.items() if value}


def read_trace(path: Path) -> Iterator[Entry]:
    """Yield the entries of a run's trace. Raises DataError for a line that is damaged, missing or of another schema."""
    for line in trace_lines(path):
        yield check_schema(line.value, path, line.number)


def check_schema(entry: Entry, path: Path, number: int) -> Entry:
    """Return a trace entry unchanged. Raises DataError for another schema."""
    version = entry.get("v")
    if version != SCHEMA:
        raise DataError(f"{path}:{number} has schema {version!r}, this version reads {SCHEMA}: repeat the run")
    return entry


def step_numbers(decision: Decision, task: int, wall_ms: float) -> StepNumbers:
    """Return the cost of one decision; without a model all numbers but ``task`` are zero.

    Unmeasured work before the logits (writing facts as text, tokenizing the query) is added to the part ``update``,
    so that ``ttft_ms`` is complete. Storing new blocks and scoring come after the logits and are excluded.
    ``ttft_overlapped_ms`` also excludes the encoding of missing blocks, which can be done while the robot moves, except
    for the first prompt after a reset.

    :param wall_ms: wall time of the calls `observe` and `decide` of the planner
    """
    prefill = decision.prefill
    if prefill is None:
        return StepNumbers(task=task)
    times = asdict(prefill.timings)
    total = sum(times.values())
    ttft = max(wall_ms - prefill.after_ms - decision.score_ms, total)
    return StepNumbers(
        task=task,
        **asdict(prefill.counts),
        parts=times | {"update": times["update"] + ttft - total},
        ttft_ms=ttft,
        ttft_overlapped_ms=ttft - (0.0 if prefill.cold else times["encode"]),
        score_ms=decision.score_ms,
        score_tokens=decision.score_tokens,
        raw_reads=prefill.reads.raw,
        live_reads=prefill.reads.live,
        cold=prefill.cold,
        flips=len(prefill.flips),
    )
