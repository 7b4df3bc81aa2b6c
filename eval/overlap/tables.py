"""What the schedules cost, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from eval.overlap.compare import YARDSTICK, Played, Point
from eval.overlap.timeline import COMPUTE, LINK
from eval.tables import MISSING, number, percent

HEADINGS = ("makespan ms", "over bound %", "over tight %", "idle compute ms", "idle link ms", "jobs", "MB", "speed-up")


def schedule_table(played: Sequence[Played], title: str) -> Table:
    """One line per stage; the speed-up is over next_layer."""
    limits = played[0].bounds
    compute, first, moving = (_ms(part) for part in (limits.compute, limits.dependency, limits.transfer))
    bound = f"bound {_ms(limits.simple)} ms = max(compute {compute}, first dependency {first} + transfer {moving})"
    table = _table(title, "loading", HEADINGS, f"{bound}; tight {_ms(limits.tight)} ms")
    base = _makespan(played, YARDSTICK)
    for one in played:
        line = one.timeline
        times = _ms(line.makespan), _share(one.over), _share(one.over_tight), _ms(line.idle(COMPUTE))
        moved = _ms(line.idle(LINK)), str(len(line.on(LINK))), number(line.nbytes / 1e6, 1)
        table.add_row(one.stage, *times, *moved, _speed(base, line.makespan))
    return table


def sweep_table(points: Sequence[Point], title: str) -> Table:
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
            _speed(_makespan(point.played, YARDSTICK), fastest),
        )
    return table


def _table(title: str, first: str, headings: Sequence[str], caption: str) -> Table:
    table = Table(title=title, caption=caption)
    table.add_column(first, no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _makespan(played: Sequence[Played], stage: str) -> float | None:
    return next((one.timeline.makespan for one in played if one.stage == stage), None)


def _speed(base: float | None, makespan: float) -> str:
    return MISSING if base is None or not makespan else f"{base / makespan:.2f}x"


def _ms(seconds: float) -> str:
    return number(round(1e3 * seconds, 6) + 0.0, 2)  # no -0.00 where sums differ in their last digits


def _share(value: float) -> str:
    return percent(round(value, 6) + 0.0)
