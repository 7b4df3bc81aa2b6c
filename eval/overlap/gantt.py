"""The Gantt chart: who is busy with which layer when, one panel per loading stage over the same time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eval.overlap.compare import YARDSTICK, Played
from eval.overlap.timeline import COMPUTE, LANES, LINK, Event
from eval.plots import GRID, INK, PAPER, check_figure
from memory.disk.atomic import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

WIDTH, LANE, MARGIN = 11.0, 0.42, 0.85  # inches: the figure, a lane, what a panel has beside its lanes
COLOURS = ("#1f4e5f", "#2a9d8f", "#a8c686", "#e9c46a", "#e07a3f", "#b23a48")  # from the first layer to the last
LEGEND = (("attention, load", ""), ("MLP", "....."), ("importance", "xxxxx"))
HATCH = {"mlp": LEGEND[1][1], "importance": LEGEND[2][1]}
LIMIT = "#24313c"


def gantt(played: Sequence[Played], file: Path, title: str = "") -> None:
    """Draw all stages into ``file`` (PNG).

    :raises ConfigError: as `check_figure`
    """
    check_figure(file)
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    colours = LinearSegmentedColormap.from_list("layers", COLOURS)
    lanes = [lane for lane in LANES if any(one.timeline.on(lane) for one in played)]
    height = len(played) * (LANE * len(lanes) + MARGIN) + 0.7
    drawn = Figure(figsize=(WIDTH, height), facecolor=PAPER, layout="constrained")
    panels = list(drawn.subplots(len(played), 1, squeeze=False, sharex=True).flat)
    longest = max(one.timeline.makespan for one in played)
    for axis, one in zip(panels, played, strict=True):
        _panel(axis, one, lanes, colours, longest)
        axis.set_title(_headline(one, played), loc="left", fontsize=9.5, color=INK)
    panels[-1].set_xlabel("ms", fontsize=8.5, color=INK)
    _legend(drawn, colours, _layers(played[0]), title)
    with replacing(file) as stream:
        drawn.savefig(stream, format="png", dpi=130)


def _panel(axis: Axes, one: Played, lanes: Sequence[str], colours: Colormap, longest: float) -> None:
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
    for event in one.timeline.events:
        _block(axis, event, lanes.index(event.lane), colours, _layers(one), longest)
    axis.axvline(1e3 * one.bounds.tight, color=LIMIT, linewidth=1.1, linestyle=(0, (4, 3)))


def _block(axis: Axes, event: Event, lane: int, colours: Colormap, layers: int, longest: float) -> None:
    """A bar in its layer's colour, with the layer's number where there is room."""
    start, width = 1e3 * event.start, 1e3 * event.seconds
    colour = colours(event.layer / max(1, layers - 1))
    hatch = HATCH.get(event.kind, "")
    axis.barh(lane, width, left=start, height=0.74, color=colour, edgecolor=PAPER, linewidth=0.5, hatch=hatch)
    if event.kind in ("attention", "load", "layer") and event.seconds > 0.014 * longest:
        dark = sum(colour[:3]) > 1.7
        axis.text(
            start + width / 2, lane, str(event.layer), ha="center", va="center_baseline", fontsize=7.5,
            color=INK if dark else PAPER,
        )  # fmt: skip


def _headline(one: Played, played: Sequence[Played]) -> str:
    line = one.timeline
    base = next((other.timeline.makespan for other in played if other.stage == YARDSTICK), None)
    faster = f", {base / line.makespan:.2f}x next_layer" if base and one.stage != YARDSTICK else ""
    idle = f"idle: compute {line.idle(COMPUTE) / line.makespan:.0%}, link {line.idle(LINK) / line.makespan:.0%}"
    return f"{one.stage}: {1e3 * line.makespan:.1f} ms{faster}  ({idle})"


def _layers(one: Played) -> int:
    return 1 + max(event.layer for event in one.timeline.events)


def _legend(drawn: Figure, colours: Colormap, layers: int, title: str) -> None:
    """What colours, hatches and the dashed line mean."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    ends = [Patch(color=colours(0.0), label="layer 0"), Patch(color=colours(1.0), label=f"layer {layers - 1}")]
    kinds = [Patch(facecolor="#b9b3a5", edgecolor=PAPER, hatch=hatch, label=name) for name, hatch in LEGEND]
    limit = Line2D([], [], color=LIMIT, linewidth=1.1, linestyle=(0, (4, 3)), label="no schedule ends before")
    drawn.legend(
        handles=[*ends, *kinds, limit], loc="outside lower center", ncols=6, fontsize=8, frameon=False, labelcolor=INK
    )
    drawn.suptitle(title, x=0.01, ha="left", fontsize=10.5, fontweight="bold", color=INK)
