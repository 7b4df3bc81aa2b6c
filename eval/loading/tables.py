"""What the schedules cost, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from eval.common.tables import MISSING, bounds, number, percent
from eval.loading.compare import BASELINE, StageRun, SweepPoint
from eval.loading.simulated_link import Link
from eval.loading.timeline import COMPUTE, LINK

if TYPE_CHECKING:
    from eval.loading.bench import StageTurns

HEADINGS = ("makespan ms", "over bound %", "over tight %", "idle compute ms", "idle link ms", "jobs", "MB", "speed-up")
REAL = ("real ms", "played ms", "over played %", "over bound %", "over tight %")
PARTS = ("compute ms", "between ms", "late ms", "jobs")


def schedule_table(played: Sequence[StageRun], title: str) -> Table:
    """One line per stage; the speed-up is over next_layer."""
    limits = played[0].bounds
    compute, first, moving = (_ms(part) for part in (limits.compute, limits.dependency, limits.transfer))
    bound = f"bound {_ms(limits.simple)} ms = max(compute {compute}, first dependency {first} + transfer {moving})"
    table = _table(title, "loading", HEADINGS, f"{bound}; tight {_ms(limits.tight)} ms")
    base = _makespan(played, BASELINE)
    for one in played:
        line = one.timeline
        times = _ms(line.makespan), _share(one.over), _share(one.over_tight), _ms(line.idle(COMPUTE))
        moved = _ms(line.idle(LINK)), str(len(line.on(LINK))), number(line.nbytes / 1e6, 1)
        table.add_row(one.stage, *times, *moved, _speed(base, line.makespan))
    return table


def sweep_table(points: Sequence[SweepPoint], title: str) -> Table:
    """One line per ratio of loading to computing: makespans, and what the fastest gains over next_layer."""
    stages = [one.stage for one in points[0].played]
    caption = "makespan in ms, and % above the tight bound; speed-up: of the fastest over next_layer"
    table = _table(title, "load / compute", ["GB/s", *stages, "tight bound", "speed-up"], caption)
    for point in points:
        fastest = min(one.timeline.makespan for one in point.played)
        table.add_row(
            f"{point.ratio:.3g}",
            number(point.link.bandwidth / 1e9, 2),
            *(f"{_ms(one.timeline.makespan)} +{_share(one.over_tight)}" for one in point.played),
            _ms(point.played[0].bounds.tight),
            _speed(_makespan(point.played, BASELINE), fastest),
        )
    return table


def measured_table(measured: Sequence[StageTurns], link: Link, title: str) -> Table:
    """One line per stage, medians over its turns; what a prefill is above is what its own pieces make of it."""
    caption = (
        "medians. played: by the simulator, with the times of each run's pieces; between: the compute worker's time "
        "between its pieces; late: what jobs took longer than over the link"
    )
    table = _table(title, "loading", [*REAL, *PARTS, "speed-up", "played"], caption)
    base = next((turns for turns in measured if turns.stage == BASELINE), None)
    for turns in measured:
        seconds = (
            turns.median(lambda pair: pair.measured.timeline.makespan),
            turns.median(lambda pair: pair.simulated.timeline.makespan),
        )
        shares = (
            turns.median(lambda pair: pair.over),
            turns.median(lambda pair: pair.measured.over),
            turns.median(lambda pair: pair.measured.over_tight),
        )
        parts = (
            turns.median(lambda pair: pair.measured.timeline.busy(COMPUTE)),
            turns.median(lambda pair: pair.real.between),
            turns.median(lambda pair: pair.real.late(link)),
        )
        jobs = turns.median(lambda pair: len(pair.measured.timeline.on(LINK)))
        cells = *map(_ms, seconds), *map(_share, shares), *map(_ms, parts), number(jobs, 0)
        table.add_row(turns.stage, *cells, _faster(turns, base), _played(turns, base))
    return table


def measured_sweep(points: Sequence[tuple[float, Link, Sequence[StageTurns]]], title: str) -> Table:
    """One line per (ratio of loading to computing, link, stages): medians."""
    stages = [turns.stage for turns in points[0][2]]
    caption = "real makespan in ms, % above the bound of its own pieces, and how much faster than next_layer"
    table = _table(title, "load / compute", ["GB/s", *stages], caption)
    for ratio, link, measured in points:
        base = next((turns for turns in measured if turns.stage == BASELINE), None)
        cells = (
            f"{_ms(turns.median(lambda pair: pair.measured.timeline.makespan))} "
            f"+{_share(turns.median(lambda pair: pair.measured.over))} {_faster(turns, base)}"
            for turns in measured
        )
        table.add_row(f"{ratio:.3g}", f"{link.bandwidth / 1e9:.3g}", *cells)
    return table


def _faster(turns: StageTurns, base: StageTurns | None) -> str:
    """Than ``base``, turn by turn, with its interval."""
    if base is None:
        return MISSING
    ratio, interval = turns.faster(base)
    return f"{ratio:.2f}x{bounds(interval if turns is not base else None)}"


def _played(turns: StageTurns, base: StageTurns | None) -> str:
    """The same of what the simulator makes of the runs."""
    span = turns.median(lambda pair: pair.simulated.timeline.makespan)
    return _speed(base and base.median(lambda pair: pair.simulated.timeline.makespan), span)


def _table(title: str, first: str, headings: Sequence[str], caption: str) -> Table:
    table = Table(title=title, caption=caption)
    table.add_column(first, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=heading == "speed-up")
    return table


def _makespan(played: Sequence[StageRun], stage: str) -> float | None:
    return next((one.timeline.makespan for one in played if one.stage == stage), None)


def _speed(base: float | None, makespan: float) -> str:
    return MISSING if base is None or not makespan else f"{base / makespan:.2f}x"


def _ms(seconds: float) -> str:
    return number(round(1e3 * seconds, 6) + 0.0, 2)  # no -0.00 where sums differ in their last digits


def _share(value: float) -> str:
    return percent(round(value, 6) + 0.0)
