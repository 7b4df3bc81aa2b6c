"""One look for all figures. matplotlib is an extra, imported when a figure is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from eval.common.hydra_command import check_target
from keep_agent.errors import ConfigError
from memory.files.atomic import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAPER, INK, GRID = "#f7f5f0", "#24313c", "#d9d4c8"
COLORS = ("#24313c", "#d9702b", "#2a9d8f", "#8a5aa8", "#3b6fb5", "#a7862a", "#c1443c", "#6b7d4f", "#7f8c95", "#b3688f")
MARKERS = "os^Dv<>PX*"


def check_figure(file: Path) -> None:
    """Can a figure be drawn into ``file``? Asked before what takes hours. Makes its folder.

    :raises ConfigError: matplotlib is not installed, it knows no such kind of file, or the place cannot be written
    """
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ModuleNotFoundError as error:
        raise ConfigError("figures need matplotlib: pip install 'keep-agent[plot]'") from error
    kinds = FigureCanvasBase.get_supported_filetypes()
    if _kind(file) not in kinds:
        raise ConfigError(f"{file} is no kind of figure; let its name end in one of: .{', .'.join(sorted(kinds))}")
    check_target(file)


def _kind(file: Path) -> str:
    return file.suffix.lower().lstrip(".") or "png"


@contextmanager
def figure(file: Path, panels: int = 1, columns: int = 2, y_label: str = "") -> Iterator[list[Axes]]:
    """Axes of ``panels``, ``columns`` side by side; the figure is written to ``file`` in the end.

    With a ``y_label`` all panels share what it names, else each has a scale of its own.

    :raises ConfigError: as `check_figure`
    """
    check_figure(file)
    from matplotlib.figure import Figure

    columns = min(columns, panels)
    rows = -(-panels // columns)
    drawn = Figure(figsize=(1.2 + 4.6 * columns, 4.2 * rows), facecolor=PAPER, layout="constrained")
    axes = list(drawn.subplots(rows, columns, squeeze=False, sharey=bool(y_label)).flat)
    drawn.supylabel(y_label, fontsize=8, color=INK)
    for spare in axes[panels:]:
        spare.remove()
    axes = axes[:panels]
    for axis in axes:
        axis.set_facecolor(PAPER)
        axis.grid(color=GRID, linewidth=0.6)
        axis.tick_params(which="both", colors=INK, labelsize=8)
        for spine in axis.spines.values():
            spine.set_color(GRID)
    yield axes
    with replacing(file) as stream:
        drawn.savefig(stream, format=_kind(file), dpi=150)


def style(number: int) -> dict[str, object]:
    """Colour and marker of line ``number``, told apart without colour too."""
    return {
        "color": COLORS[number % len(COLORS)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 4.5,
        "linewidth": 1.4,
    }
