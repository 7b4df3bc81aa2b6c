"""Tables of simulated and measured prefills. `eval.loading.compare.Bounds` explains the simple and the tight bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from rich.table import Table

from eval.common.tables import MISSING, Column, bounds, make_table, number, percent
from eval.loading.compare import BASELINE, StageRun, SweepPoint
from eval.loading.simulate import Link
from eval.loading.timeline import COMPUTE, LINK

if TYPE_CHECKING:
    from eval.loading.measure import PrefillPair, StageTurns


def schedule_table(runs: Sequence[StageRun], title: str) -> Table:
    """Build a table with one line per loading stage; the speed-up is over next_layer."""
    limits, base = runs[0].bounds, _makespan(runs, BASELINE)
    compute, first, moving = (_ms(part) for part in (limits.compute, limits.dependency, limits.transfer))
    bound = f"bound {_ms(limits.simple)} ms = max(compute {compute}, first dependency {first} + transfer {moving})"
    columns: Sequence[Column] = (
        ("loading", lambda run: run.stage),
        ("makespan ms", lambda run: _ms(run.timeline.makespan)),
        ("over bound %", lambda run: _share(run.excess)),
        ("over tight %", lambda run: _share(run.tight_excess)),
        ("idle compute ms", lambda run: _ms(run.timeline.idle(COMPUTE))),
        ("idle link ms", lambda run: _ms(run.timeline.idle(LINK))),
        ("jobs", lambda run: str(len(run.timeline.on(LINK)))),
        ("MB", lambda run: number(run.timeline.nbytes / 1e6, 1)),
        ("speed-up", lambda run: _speed(base, run.timeline.makespan)),
    )
    return make_table(title, runs, columns, f"{bound}; tight {_ms(limits.tight)} ms", wrap=True)


def sweep_table(points: Sequence[SweepPoint], title: str) -> Table:
    """Build a table with one line per bandwidth: makespans, and the speed-up of the fastest stage over next_layer."""

    def cell(place: int, point: SweepPoint) -> str:
        return f"{_ms(point.runs[place].timeline.makespan)} +{_share(point.runs[place].tight_excess)}"

    columns: Sequence[Column] = (
        ("load / compute", lambda point: f"{point.ratio:.3g}"),
        ("GB/s", lambda point: number(point.link.bandwidth / 1e9, 2)),
        *((run.stage, partial(cell, place)) for place, run in enumerate(points[0].runs)),
        ("tight bound", lambda point: _ms(point.runs[0].bounds.tight)),
        ("speed-up", lambda p: _speed(_makespan(p.runs, BASELINE), min(run.timeline.makespan for run in p.runs))),
    )
    caption = "makespan in ms, and % above the tight bound; speed-up: of the fastest stage over next_layer"
    return make_table(title, points, columns, caption, wrap=True)


def measured_table(measured: Sequence[StageTurns], link: Link, title: str) -> Table:
    """Build a table with one line per loading stage: medians over its turns, measured and simulated."""
    base = _baseline(measured)

    def simulated(pair: PrefillPair) -> float:
        return pair.simulated.timeline.makespan

    def median(form: Callable[[float], str], value: Callable[[PrefillPair], float]) -> Callable[[StageTurns], str]:
        return lambda turns: form(turns.median(value))

    columns: Sequence[Column] = (
        ("loading", lambda turns: turns.stage),
        ("measured ms", median(_ms, lambda pair: pair.measured.timeline.makespan)),
        ("simulated ms", median(_ms, simulated)),
        ("over simulated %", median(_share, lambda pair: pair.excess)),
        ("over bound %", median(_share, lambda pair: pair.measured.excess)),
        ("over tight %", median(_share, lambda pair: pair.measured.tight_excess)),
        ("compute ms", median(_ms, lambda pair: pair.measured.timeline.busy(COMPUTE))),
        ("between ms", median(_ms, lambda pair: pair.real.gap_seconds)),
        ("late ms", median(_ms, lambda pair: pair.real.link_delay(link))),
        ("jobs", median(lambda jobs: number(jobs, 0), lambda pair: len(pair.measured.timeline.on(LINK)))),
        ("speed-up", lambda turns: _faster(turns, base)),
        ("simulated", lambda turns: _speed(base and base.median(simulated), turns.median(simulated))),
    )
    caption = (
        "medians. simulated: with the measured times of each run's parts; between: time in which the compute worker "
        "neither computes nor waits for a transfer; late: time that jobs took beyond the link model's"
    )
    return make_table(title, measured, columns, caption, wrap=True)


def measured_sweep(points: Sequence[tuple[float, Link, Sequence[StageTurns]]], title: str) -> Table:
    """Build a table of medians, one line per point: (ratio of loading to computing, link, turns of each stage)."""

    def cell(place: int, point: tuple[float, Link, Sequence[StageTurns]]) -> str:
        turns = point[2][place]
        makespan = turns.median(lambda pair: pair.measured.timeline.makespan)
        over = turns.median(lambda pair: pair.measured.excess)
        return f"{_ms(makespan)} +{_share(over)} {_faster(turns, _baseline(point[2]))}"

    columns: Sequence[Column] = (
        ("load / compute", lambda point: f"{point[0]:.3g}"),
        ("GB/s", lambda point: f"{point[1].bandwidth / 1e9:.3g}"),
        *((turns.stage, partial(cell, place)) for place, turns in enumerate(points[0][2])),
    )
    caption = "measured makespan in ms, % above the simple bound of the measured times, and speed-up over next_layer"
    return make_table(title, points, columns, caption, wrap=True)


def _baseline(measured: Sequence[StageTurns]) -> StageTurns | None:
    return next((turns for turns in measured if turns.stage == BASELINE), None)


def _faster(turns: StageTurns, base: StageTurns | None) -> str:
    if base is None:
        return MISSING
    ratio, interval = turns.speedup(base)
    return f"{ratio:.2f}x{bounds(interval if turns is not base else None)}"


def _makespan(runs: Sequence[StageRun], stage: str) -> float | None:
    return next((run.timeline.makespan for run in runs if run.stage == stage), None)


def _speed(base: float | None, makespan: float) -> str:
    return MISSING if base is None or not makespan else f"{base / makespan:.2f}x"


def _ms(seconds: float) -> str:
    return number(round(1e3 * seconds, 6) + 0.0, 2)  # avoids -0.00 for sums that differ by rounding


def _share(value: float) -> str:
    return percent(round(value, 6) + 0.0)
