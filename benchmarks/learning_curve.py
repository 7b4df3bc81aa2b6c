"""Figure of planner-tiny's learning curve, drawn from the trainer's record.

    python -m benchmarks.learning_curve [training.json] [--out docs/img/learning-curve.svg]

The upper panel shows the share of target lines in which every token is correct, by kind of line; the lower panel shows
the loss. Each point is the median of neighbouring reports, because a report contains few lines of some kinds. Shades
mark the levels of the curriculum: a new level is harder, so that curves may fall at its start.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from keep_agent.errors import DataError, KeepError
from planners.bundled import BUNDLED
from planners.tiny.checkpoint import HISTORY

KINDS = {
    "probe": "look-ups",
    "recall": "long-memory probes",
    "plan": "plans without memory",
    "goal": "goals",
    "step": "single decisions",
    "trajectory": "decisions along a task",
}
COLORS = dict(zip(KINDS, ("#2a9d8f", "#c1443c", "#a7862a", "#8a5aa8", "#d9702b", "#3b6fb5"), strict=True))
LOSS_COLOR = "#52626f"
WINDOW = 7  # reports in a median; a report covers about a minute
NARROWEST = 0.02  # minimum share of the width at which a level shows its number
PAPER, SHADE, INK = "#f7f5f0", "#ece8df", "#24313c"


def read_curve(path: Path) -> list[dict[str, float]]:
    """Read the reports of a training run, in order. Raises DataError for a file without reports."""
    try:
        curve = json.loads(path.read_text())["progress"]["curve"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is no training record ({error}); give a training.json of planners.train") from error
    if not curve:
        raise DataError(f"{path} contains no reports; train for longer")
    return curve


def hours(row: dict[str, float]) -> float:
    return row["seconds"] / 3600


def smooth(values: Sequence[float]) -> list[float]:
    """Return the median of a window of `WINDOW` values around each value; the window shrinks at the ends."""
    reach = [min(WINDOW // 2, i, len(values) - 1 - i) for i in range(len(values))]
    return [median(values[i - r : i + r + 1]) for i, r in enumerate(reach)]


def shade_levels(axes: Any, curve: list[dict[str, float]]) -> None:
    """Shade every other level of the curriculum, and write the numbers of the levels."""
    start = 0.0
    for level, rows in groupby(curve, key=lambda row: row["level"]):
        end = hours(list(rows)[-1])
        if level % 2:
            axes.axvspan(start, end, color=SHADE, lw=0, zorder=0)
        if end - start > NARROWEST * hours(curve[-1]):
            axes.text((start + end) / 2, 1.02, f"{level}", transform=axes.get_xaxis_transform(), ha="center")
        start = end


def draw(curve: list[dict[str, float]], out: Path) -> None:
    """Write the figure; the suffix of ``out`` selects the file format."""
    import matplotlib as mpl
    from matplotlib import pyplot
    from matplotlib.ticker import LogLocator

    mpl.use("Agg")
    mpl.rcParams.update({"svg.hashsalt": "planner-tiny", "font.family": "sans-serif", "text.color": INK})
    figure, (upper, lower) = pyplot.subplots(
        2, 1, figsize=(9, 6), sharex=True, height_ratios=(2, 1), facecolor=PAPER, layout="constrained"
    )
    for kind, label in KINDS.items():
        rows = [row for row in curve if f"exact_{kind}" in row]
        if not rows:
            continue
        exact = smooth([100 * row[f"exact_{kind}"] for row in rows])
        upper.plot([hours(row) for row in rows], exact, color=COLORS[kind], label=label)
    lower.plot([hours(row) for row in curve], smooth([row["loss"] for row in curve]), color=LOSS_COLOR)
    upper.set(ylabel="exact, %", ylim=(0, 101), xlim=(0, hours(curve[-1])))
    lower.set(ylabel="loss", xlabel="hours of training", yscale="log")
    lower.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    lower.yaxis.set_major_formatter("{x:g}")
    lower.yaxis.set_minor_formatter("")
    figure.legend(loc="outside lower center", ncols=len(KINDS) // 2, frameon=False)
    upper.set_title("level of the curriculum", fontsize=10, color=INK, pad=22)
    shade_levels(upper, curve)
    for axes in (upper, lower):
        axes.set_facecolor(PAPER)
        axes.spines[["top", "right"]].set_visible(False)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)
    pyplot.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", nargs="?", type=Path, default=BUNDLED / HISTORY, help="default: the bundled record")
    parser.add_argument("--out", type=Path, default=Path("docs/img/learning-curve.svg"))
    arguments = parser.parse_args()
    try:
        draw(read_curve(arguments.record), arguments.out)
    except KeepError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
