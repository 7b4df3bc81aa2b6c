"""Loading that hides behind computing, played or measured: ``python -m eval.pipeline``.

Plays the loading stages against the times of a layer's pieces, as the engine's loader would run them, and says how long
the prefill takes, how long the two engines idle, and how far that is from what is possible. Times come from a model's
shape and a device's data sheet (--model, --device, --attainable), or from a file of measured ones (--times). With --out
FOLDER every event is written to pipeline.json, and a Gantt chart to gantt.png. --sweep changes the link's bandwidth
until loading takes from an eighth to eight times as long as computing.

With --measure the engine itself runs on this machine, with random weights, in bfloat16, over a link that is throttled;
the simulator plays what each run's pieces took. What loading takes is said by --ratio, by --link, or by --sweep.

FILE of --times: {"attention": [s, ...], "importance": [s, ...], "mlp": [s, ...]}, one number per layer; and, if they
were measured, "active": [[row numbers], ...], instead of those that --recompute chooses, and "row_bytes": bytes of
one row at one layer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from eval.common.plots import check_figure
from eval.common.variants import names
from eval.loading.compare import STAGES, check_stages
from eval.loading.gantt import CHART
from eval.loading.layer_costs import Shape
from eval.loading.machines import DEVICES, LINKS, device_named, link_named
from eval.loading.workload import METHODS, NARROW_OF
from keep_agent.console import make_console
from keep_agent.errors import ConfigError
from keep_agent.guard import guarded
from memory.engine.models.model_shapes import SHAPES
from memory.recompute.schedule import SHAPES as SCHEDULE_SHAPES

if TYPE_CHECKING:
    from eval.loading.layer_times import LayerTimes

MEASURE_OPTIONS = ("ratio", "threads", "repeats")
SCHEDULE_METHODS = ("keep", "cacheblend")  # methods that compute a share of the memory, which may fall
SIMULATE_OPTIONS = ("layers", "weight_bits", "device", "attainable", "times", "seed")


def parser() -> argparse.ArgumentParser:
    described = argparse.ArgumentParser(
        prog="keep-eval-pipeline", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = described.add_argument
    add("--model", default="qwen2.5-14b", help=f"a config.json, or one of {', '.join(SHAPES)} (qwen2.5-14b)")
    add("--layers", type=int, help="only so many of its layers")
    add("--weight-bits", type=int, default=16, help="4, 8 or 16 per weight (16); computing stays in bfloat16")
    add("--device", default="a6000", help=f"{', '.join(DEVICES)}, or {MEASURED}: this one, measured (a6000)")
    add("--attainable", type=float, default=0.6, help="share of the device's rates that is reached (0.6)")
    add("--link", help=f"{', '.join(LINKS)}, or GB/s (default: the device's own)")
    add("--segments", type=int, default=40, help="segments of memory (40)")
    add("--segment-tokens", type=int, default=40, help="rows of each (40)")
    add("--together", type=int, default=1, help="segments per unit (1)")
    add("--query", type=int, default=64, help="rows of the query, always computed (64)")
    add("--recompute", choices=METHODS, default="keep", help="which rows are computed (keep)")
    add(
        "--schedule",
        choices=SCHEDULE_SHAPES,
        help="how the share of memory that is computed falls (default: the method's way)",
    )
    add("--average", type=float, help="mean of that share over the layers behind the first (the method's)")
    add(
        "--importance",
        choices=NARROW_OF,
        default="before",
        help="KEEP chooses before a layer's MLP, or beside it (before)",
    )
    add("--times", type=Path, metavar="FILE.json", help="measured times per layer, instead of a device's")
    add("--loading", type=names, default=list(STAGES), metavar="A,B", help=f"default: {','.join(STAGES)}")
    add("--chunk", type=float, metavar="MB",
        help="what is loaded ahead moves in jobs of it (1; measured: a millisecond of the link)")  # fmt: skip
    add("--sweep", action="store_true", help="over bandwidths: loading takes 1/8 to 8 (1/4 to 4) times as long")
    add("--measure", action="store_true", help="run the engine, over a link made as slow as --link or --ratio say")
    add("--ratio", type=float, metavar="R", help="measured: a link over which loading takes R x computing (1)")
    add("--threads", type=int, metavar="N", help="measured: threads that compute (all)")
    add("--repeats", type=int, default=7, metavar="N", help="measured: turns that count (7)")
    add("--seed", type=int, default=0, help="draws what is dropped (0)")
    add("--markdown", action="store_true", help="print tables in Markdown")
    add("--out", type=Path, metavar="FOLDER", help=f"write pipeline.json and {CHART} there")
    return described


def _check_options(arguments: argparse.Namespace, without_effect: Mapping[str, Sequence[str]]) -> None:
    """Raises ConfigError for an option that was given and has no effect; they are named by the reason."""
    plain = parser()
    for reason, options in without_effect.items():
        for name in options:
            if getattr(arguments, name) != plain.get_default(name):
                raise ConfigError(f"--{name.replace('_', '-')} means nothing: {reason}; leave it out")


def _without_effect(arguments: argparse.Namespace) -> dict[str, Sequence[str]]:
    """Options that say nothing beside others, by the reason."""
    found: dict[str, Sequence[str]] = {}
    if arguments.measure:
        found["--measure runs the engine here"] = SIMULATE_OPTIONS
    else:
        found["without --measure nothing is run"] = MEASURE_OPTIONS
    if arguments.times is not None and arguments.link is not None:
        found["--times and --link say all of a device"] = ("device",)
    if arguments.times is not None:
        found["the times are those of --times"] = "layers", "weight_bits", "attainable"
    if arguments.recompute not in SCHEDULE_METHODS:
        found[f"{arguments.recompute} computes the same rows at every layer"] = "schedule", "average", "seed"
    if arguments.recompute != "keep":
        found[f"{arguments.recompute} does not choose by importance"] = ("importance",)
    if arguments.sweep:
        found["--sweep goes through ratios"] = ("ratio",)
    return found


def _without_effect_beside(times: LayerTimes) -> dict[str, Sequence[str]]:
    """Options without effect beside a file of times, by the reason."""
    found: dict[str, Sequence[str]] = {}
    if times.active:
        found["the rows are those of --times"] = "schedule", "average", "seed"
    if times.row_bytes:
        found["what a row takes stands in --times"] = ("model",)
    return found


def report(arguments: argparse.Namespace, console: Console) -> None:
    """What is mistyped is refused before torch is loaded."""
    check_stages(arguments.loading)
    _check_options(arguments, _without_effect(arguments))
    if arguments.chunk is not None and not arguments.chunk > 0:
        raise ConfigError(f"--chunk {arguments.chunk:g} moves nothing; use more than 0 MB")
    if arguments.out:
        check_figure(arguments.out / CHART)
    if arguments.measure:
        from eval.loading.measure_command import report as measured  # here: both load torch

        measured(arguments, console)
        return
    shape, device = Shape.named(arguments.model), device_named(arguments.device)
    link = link_named(arguments.link or device.link)
    from eval.loading.layer_times import read_times
    from eval.loading.simulate_command import report as played

    times = None if arguments.times is None else read_times(arguments.times)
    if times is not None:
        _check_options(arguments, _without_effect_beside(times))
    played(arguments, shape, device, link, times, console)


def main() -> None:
    arguments = parser().parse_args()
    sys.exit(guarded(lambda: report(arguments, make_console())))


if __name__ == "__main__":
    main()
