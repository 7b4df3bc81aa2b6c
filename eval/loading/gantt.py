"""Gantt chart of prefills: one panel per loading stage, with a lane for each worker and a bar for each event."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eval.common.plots import GRID, INK, PAPER, check_figure
from eval.loading.compare import BASELINE, StageRun
from eval.loading.timeline import COMPUTE, LANES, LINK, Event
from memory.files.atomic import replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

CHART = "gantt.png"
WIDTH, LANE, MARGIN = 11.0, 0.42, 0.85  # inches: figure, lane, margin of a panel
COLOURS = ("#1f4e5f", "#2a9d8f", "#a8c686", "#e9c46a", "#e07a3f", "#b23a48")  # from the first layer to the last
TINTS = {"attention": 1.0, "mlp": 0.55, "load": 1.0}  # share of the layer's colour in a bar; the rest is background
GREY = "#6f7a80"
NUMBERED = ("attention", "load")
DASHES = {"color": INK, "linewidth": 1.1, "linestyle": (0, (4, 3))}


def gantt(runs: Sequence[StageRun], file: Path, title: str = "") -> None:
    """Draw all runs into ``file`` (PNG). Raises ConfigError as `check_figure` does."""
    check_figure(file)
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    colours = LinearSegmentedColormap.from_list("layers", COLOURS)
    lanes = [lane for lane in LANES if any(run.timeline.on(lane) for run in runs)]
    height = len(runs) * (LANE * len(lanes) + MARGIN) + 0.7
    canvas = Figure(figsize=(WIDTH, height), facecolor=PAPER, layout="constrained")
    panels = list(canvas.subplots(len(runs), 1, squeeze=False, sharex=True).flat)
    longest = max(run.timeline.makespan for run in runs)
    for axis, run in zip(panels, runs, strict=True):
        _panel(axis, run, lanes, colours, longest)
        axis.set_title(_headline(run, runs), loc="left", fontsize=9.5, color=INK)
    panels[-1].set_xlabel("ms", fontsize=8.5, color=INK)
    _legend(canvas, colours, max(1, *(event.layer for event in runs[0].timeline.events)), title)
    with replace_file(file) as stream:
        canvas.savefig(stream, format="png", dpi=130)


def _panel(axis: Axes, run: StageRun, lanes: Sequence[str], colours: Colormap, longest: float) -> None:
    axis.set_facecolor(PAPER)
    axis.set_xlim(0, 1e3 * longest * 1.005)
    axis.set_ylim(len(lanes) - 0.5, -0.5)
    axis.set_yticks(range(len(lanes)), lanes)
    axis.tick_params(colors=INK, labelsize=8.5, length=0)
    axis.grid(axis="x", color=GRID, linewidth=0.6)
    axis.set_axisbelow(True)
    for side, spine in axis.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(GRID)
    last = max(1, *(event.layer for event in run.timeline.events))
    for event in run.timeline.events:
        _bar(axis, event, lanes.index(event.lane), colours, last, longest)
    axis.axvline(1e3 * run.bounds.tight, **DASHES)


def _bar(axis: Axes, event: Event, lane: int, colours: Colormap, last: int, longest: float) -> None:
    """Draw a bar in its layer's colour (dark for a choice of rows), with the layer's number if there is room."""
    from matplotlib.colors import to_rgb

    start, width = 1e3 * event.start, 1e3 * event.seconds
    colour = to_rgb(INK) if event.kind not in TINTS else _tint(colours(event.layer / last), TINTS[event.kind])
    edge = 0.5 if event.seconds > 0.003 * longest else 0.0  # thin bars would show only their edges
    axis.barh(lane, width, left=start, height=0.74, color=colour, edgecolor=PAPER, linewidth=edge)
    if event.kind in NUMBERED and event.seconds > 0.014 * longest:
        look = {"ha": "center", "va": "center_baseline", "fontsize": 7.5}
        axis.text(start + width / 2, lane, str(event.layer), color=INK if sum(colour[:3]) > 1.7 else PAPER, **look)


def _headline(run: StageRun, runs: Sequence[StageRun]) -> str:
    line = run.timeline
    same_source = [r for r in runs if r.source == run.source]
    base = next((r.timeline.makespan for r in same_source if r.stage == BASELINE), None)
    faster = f", {base / line.makespan:.2f}x next_layer" if base and run.stage != BASELINE else ""
    waits = (round(line.idle(lane) / line.makespan, 3) + 0.0 for lane in (COMPUTE, LINK))  # + 0.0 avoids -0 %
    idle = "idle: compute {:.0%}, link {:.0%}".format(*waits)
    name = f"{run.stage}, {run.source}" if run.source else run.stage
    return f"{name}: {1e3 * line.makespan:.1f} ms{faster}  ({idle})"


def _legend(canvas: Figure, colours: Colormap, last: int, title: str) -> None:
    from matplotlib.colors import to_rgb
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    ends = [Patch(color=colours(0.0), label="layer 0"), Patch(color=colours(1.0), label=f"layer {last}")]
    kinds = [Patch(color=_tint(to_rgb(GREY), tint), label=name) for name, tint in TINTS.items() if name != "load"]
    kinds.append(Patch(color=INK, label="importance"))
    limit = Line2D([], [], label="lower bound", **DASHES)
    canvas.legend(
        handles=[*ends, *kinds, limit], loc="outside lower center", ncols=6, fontsize=8, frameon=False, labelcolor=INK
    )
    canvas.suptitle(title, x=0.01, ha="left", fontsize=10.5, fontweight="bold", color=INK)


def _tint(colour: Sequence[float], tint: float) -> tuple[float, ...]:
    from matplotlib.colors import to_rgb

    return tuple(tint * value + (1 - tint) * white for value, white in zip(colour, to_rgb(PAPER), strict=False))
