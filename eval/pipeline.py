"""Overlap of loading and computing in a prefill, simulated or measured: ``python -m eval.pipeline``.

The command simulates loading stages (strategies of loading stored rows) with given times for each layer's attention,
importance (the choice of the next layer's rows) and MLP. It shows the makespan, its excess over the lower bound, and
the idle times of computing and of the link, over which rows are loaded. Times come from a model's shape and a device's
data sheet (--model, --device, --attainable), or from a file of measured times (--times). --out FOLDER writes all events
to pipeline.json and a Gantt chart to gantt.png. --sweep varies the link's bandwidth: loading takes 1/8 to 8 times as
long as computing.

--measure runs the engine on this machine, with random weights in bfloat16 and a throttled link, and simulates each run
with its measured times. --ratio, --link or --sweep set the loading time.

FILE of --times: {"attention": [s, ...], "importance": [s, ...], "mlp": [s, ...]}, one number per layer. Optional:
"active": [[row numbers], ...] replaces the rows that --recompute chooses; "row_bytes": bytes of one row at one layer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from eval.common.options import command_parser
from eval.common.plots import check_figure
from eval.common.variants import name_list
from eval.loading.compare import STAGES, check_stages
from eval.loading.costs import Shape
from eval.loading.gantt import CHART
from eval.loading.machines import DEVICES, LINKS, THIS_CPU, device_named, link_named
from eval.loading.workload import METHODS, POINT_OF, read_times
from keep_agent.console import make_console
from keep_agent.errors import ConfigError
from keep_agent.guard import guarded
from memory.engine.models.model_shapes import SHAPES
from memory.stages import SCHEDULES

SCHEDULE_METHODS = ("keep", "cacheblend")  # methods whose recomputed share may fall from layer to layer
SCHEDULE_OPTIONS = ("schedule", "average", "seed")
SIMULATE_OPTIONS = ("layers", "weight_bits", "device", "attainable", "times", "seed")


def parser() -> argparse.ArgumentParser:
    p = command_parser(__doc__, "keep-eval-pipeline")
    add = p.add_argument
    add("--model", default="qwen2.5-14b", help=f"a config.json, or one of {', '.join(SHAPES)} (qwen2.5-14b)")
    add("--layers", type=int, help="use only the first N layers", metavar="N")
    add("--weight-bits", type=int, default=16, help="bits per weight: 4, 8 or 16 (16); computing is in bfloat16")
    add("--device", default="a6000", help=f"{', '.join(DEVICES)}, or {THIS_CPU}: this CPU, measured (a6000)")
    add("--attainable", type=float, default=0.6, help="attained share of the device's peak rates (0.6)")
    add("--link", help=f"{', '.join(LINKS)}, or GB/s (default: the device's link)")
    add("--segments", type=int, default=40, help="segments of memory (40)")
    add("--segment-tokens", type=int, default=40, help="rows per segment (40)")
    add("--together", type=int, default=1, help="segments that are encoded together and stored as one block (1)")
    add("--query", type=int, default=64, help="rows of the query, which are always computed (64)")
    add("--recompute", choices=METHODS, default="keep", help="recomputation method (keep)")
    add("--schedule", choices=SCHEDULES, help="how the recomputed share falls over layers (default: the method's)")
    add("--average", type=float, help="mean recomputed share of all layers but the first (default: the method's)")
    add("--importance", choices=POINT_OF, default="before", help="KEEP chooses rows before or beside the MLP (before)")
    add("--times", type=Path, metavar="FILE.json", help="measured times per layer, instead of a device's")
    add("--loading", type=name_list, default=list(STAGES), metavar="A,B", help=f"stages (default: {','.join(STAGES)})")
    add("--chunk", type=float, metavar="MB", help="size of a job that loads ahead (1; with --measure: 1 ms of loading)")
    add("--sweep", action="store_true", help="vary the link: loading takes 1/8 to 8 x computing (--measure: 1/4 to 4)")
    add("--measure", action="store_true", help="run the engine, with a link throttled to --link or --ratio")
    add("--ratio", type=float, metavar="R", help="with --measure: loading takes R times as long as computing (1)")
    add("--threads", type=int, metavar="N", help="with --measure: compute threads (all)")
    add("--repeats", type=int, default=7, metavar="N", help="with --measure: measured repetitions (7)")
    add("--seed", type=int, default=0, help="seed that draws the rows to drop (0)")
    add("--markdown", action="store_true", help="print tables in Markdown")
    add("--out", type=Path, metavar="FOLDER", help=f"folder for pipeline.json and {CHART}")
    return p


def _check_options(arguments: argparse.Namespace, *without_effect: tuple[Any, str, Sequence[str]]) -> None:
    """Raise ConfigError for an option without effect; each of ``without_effect`` is (condition, reason, options)."""
    plain = parser()
    for condition, reason, ineffective in without_effect:
        for name in ineffective:
            if condition and getattr(arguments, name) != plain.get_default(name):
                raise ConfigError(f"--{name.replace('_', '-')} has no effect: {reason}; leave it out")


def report(arguments: argparse.Namespace, console: Console) -> None:
    """Check the options before loading torch, then simulate or measure."""
    check_stages(arguments.loading)
    timed, method = arguments.times is not None, arguments.recompute
    _check_options(
        arguments,
        (arguments.measure, "--measure runs the engine on this machine", SIMULATE_OPTIONS),
        (not arguments.measure, "it needs --measure", ("ratio", "threads", "repeats")),
        (timed and arguments.link is not None, "--times and --link replace the device", ("device",)),
        (timed, "--times sets the times", ("layers", "weight_bits", "attainable")),
        (method not in SCHEDULE_METHODS, f"{method} computes the same rows at every layer", SCHEDULE_OPTIONS),
        (method != "keep", f"{method} does not choose by importance", ("importance",)),
        (arguments.sweep, "--sweep sets the ratios", ("ratio",)),
    )
    if arguments.chunk is not None and not arguments.chunk > 0:
        raise ConfigError(f"--chunk {arguments.chunk:g} is too small; use more than 0 MB")
    if arguments.out:
        check_figure(arguments.out / CHART)
    if arguments.measure:
        from eval.loading.commands import report_measurement  # lazy, as below: it loads torch

        report_measurement(arguments, console)
        return
    shape, device = Shape.from_name(arguments.model), device_named(arguments.device)
    link = link_named(arguments.link or device.link)
    times = None if arguments.times is None else read_times(arguments.times)
    if times is not None:
        _check_options(
            arguments,
            (times.active, "--times sets the rows", SCHEDULE_OPTIONS),
            (times.row_bytes, "--times sets the bytes of a row", ("model",)),
        )
    from eval.loading.commands import report_simulation

    report_simulation(arguments, shape, device, link, times, console)


def main() -> None:
    arguments = parser().parse_args()
    sys.exit(guarded(lambda: report(arguments, make_console())))


if __name__ == "__main__":
    main()
