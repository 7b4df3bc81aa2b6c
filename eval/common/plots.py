"""Style and files of figures. matplotlib is an optional extra, imported when a figure is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from eval.common.hydra_command import check_target
from keep_agent.errors import ConfigError
from memory.files.atomic import replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAPER, INK, GRID = "#f7f5f0", "#24313c", "#d9d4c8"
COLORS = ("#24313c", "#d9702b", "#2a9d8f", "#8a5aa8", "#3b6fb5", "#a7862a", "#c1443c", "#6b7d4f", "#7f8c95", "#b3688f")
MARKERS = "os^Dv<>PX*"


def check_figure(file: Path) -> None:
    """Check before the computation that a figure can be written; make its folder. Raises ConfigError."""
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ModuleNotFoundError as error:
        raise ConfigError("figures need matplotlib: pip install 'keep-agent[plot]'") from error
    kinds = sorted(FigureCanvasBase.get_supported_filetypes())
    if _kind(file) not in kinds:
        raise ConfigError(f"{file} is not a known type of figure; use a name that ends in one of: .{', .'.join(kinds)}")
    check_target(file)


def _kind(file: Path) -> str:
    return file.suffix.lower().lstrip(".") or "png"


@contextmanager
def figure(file: Path, panels: int = 1, columns: int = 2, y_label: str = "") -> Iterator[list[Axes]]:
    """Yield the axes of ``panels`` panels in ``columns`` columns; write the figure to ``file`` at the end.

    With a ``y_label``, all panels share one labelled scale; otherwise each has its own.
    """
    check_figure(file)
    from matplotlib.figure import Figure

    columns = min(columns, panels)
    rows = -(-panels // columns)
    canvas = Figure(figsize=(1.2 + 4.6 * columns, 4.2 * rows), facecolor=PAPER, layout="constrained")
    axes = list(canvas.subplots(rows, columns, squeeze=False, sharey=bool(y_label)).flat)
    canvas.supylabel(y_label, fontsize=8, color=INK)
    for unused in axes[panels:]:
        unused.remove()
    axes = axes[:panels]
    for axis in axes:
        axis.set_facecolor(PAPER)
        axis.grid(color=GRID, linewidth=0.6)
        axis.tick_params(which="both", colors=INK, labelsize=8)
        for spine in axis.spines.values():
            spine.set_color(GRID)
    yield axes
    with replace_file(file) as stream:
        canvas.savefig(stream, format=_kind(file), dpi=150)


def style(number: int) -> dict[str, object]:
    """Return colour and marker of line ``number``; markers tell lines apart in print without colour."""
    look = {"color": COLORS[number % len(COLORS)], "marker": MARKERS[number % len(MARKERS)]}
    return {**look, "markersize": 4.5, "linewidth": 1.4}
