"""Figure of TTFT against memory size, in the style of figure 9 of KEEP (arXiv 2602.23592)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eval.common.plots import INK, PAPER, figure, style
from eval.latency.report.summary import GroupSummary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABEL_METHOD, BASE = "keep", "full_recompute"  # points of the first are labelled with the speed-up over the second


def draw(groups: Sequence[GroupSummary], file: Path) -> None:
    """Draw one panel per group. Raises ConfigError as `eval.common.plots.check_figure` does."""
    panels = [group for group in groups if any(summary.times for cell in group.cells for summary in cell.summaries)]
    with figure(file, panels=len(panels)) as axes:
        summaries = [summary for group in panels for cell in group.cells for summary in cell.summaries]
        for axis, group in zip(axes, panels, strict=True):
            _panel(axis, group, list(dict.fromkeys(summary.name for summary in summaries)))
        axes[0].legend(fontsize=7, frameon=False, labelcolor=INK, loc="upper left")


def _panel(axis: Axes, group: GroupSummary, names: Sequence[str]) -> None:
    from matplotlib.ticker import LogLocator

    for number, name in enumerate(names):
        summaries = ((cell.cell.segments, summary) for cell in group.cells for summary in cell.summaries)
        points = [(size, s.spread()) for size, s in summaries if s.name == name and s.spread()]
        if points:
            sizes, spreads = zip(*points, strict=True)
            ends = [(s.p50 - s.interval[0], s.interval[1] - s.p50) if s.interval else (0.0, 0.0) for s in spreads]
            bars, middles = list(zip(*ends, strict=True)), [spread.p50 for spread in spreads]
            label = f"{name} (label: times faster than {BASE})" if name == LABEL_METHOD else name
            axis.errorbar(sizes, middles, bars, label=label, capsize=2.5, elinewidth=0.9, **style(number))
    if LABEL_METHOD in names:
        _label(axis, group, names.index(LABEL_METHOD))
    sizes = [cell.cell.segments for cell in group.cells]
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(sizes, [str(size) for size in sizes])
    axis.margins(x=0.09, y=0.09)
    if len(set(sizes)) == 1:
        axis.set_xlim(sizes[0] / 8, 2 * sizes[0])  # room for the legend on the left
    axis.minorticks_off()
    axis.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_xlabel("segments in the prompt", fontsize=8, color=INK)
    axis.set_ylabel("ms to the first token, p50", fontsize=8, color=INK)
    axis.set_title(group.title.replace(", segments", ",\nsegments"), fontsize=9, color=INK)


def _label(axis: Axes, group: GroupSummary, number: int) -> None:
    """Write the speed-up over full recomputation beside the points of line ``number``."""
    frame = {"boxstyle": "round,pad=0.15", "facecolor": PAPER, "edgecolor": "none", "alpha": 0.8}
    look = {"fontsize": 7.5, "fontweight": "bold", "color": style(number)["color"], "bbox": frame}
    for cell in group.cells:
        for summary in cell.summaries:
            if summary.name == LABEL_METHOD and summary.ratios and summary.ratios[BASE] is not None:
                place = cell.cell.segments, summary.spread().p50
                text = f"{summary.ratios[BASE].paired:.1f}x"
                axis.annotate(text, place, (5, -12), textcoords="offset points", **look)
