"""Command ``eval.pipeline`` without ``--measure``: simulation with the times of each layer's pieces."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from eval.common.tables import show
from eval.loading.compare import StageRun, SweepPoint, run_stages, sweep
from eval.loading.costs import Roofline
from eval.loading.gantt import CHART, gantt
from eval.loading.layer_costs import Shape
from eval.loading.layer_times import LayerTimes
from eval.loading.machines import Device
from eval.loading.prompt import Prompt, schedule_of
from eval.loading.simulated_link import Link
from eval.loading.tables import schedule_table, sweep_table
from eval.loading.workload import AFTER, NARROW_OF, Work
from memory.engine.transfer.link import CHUNK
from memory.files.atomic import write_atomic

RATIOS = tuple(2.0 ** (half / 2) for half in range(-6, 7))


def report(
    arguments: argparse.Namespace, shape: Shape, device: Device, link: Link, times: LayerTimes | None, console: Console
) -> None:
    """Simulate, print the tables, and write them if a folder is given; ``times`` replace the device's."""
    work, title = work_of(arguments, shape, device, times), title_of(arguments, link)
    chunk = CHUNK if arguments.chunk is None else 1e6 * arguments.chunk
    runs = run_stages(arguments.loading, work, link, chunk)
    show(schedule_table(runs, title), arguments.markdown, console)
    points = sweep(arguments.loading, work, link, RATIOS, chunk) if arguments.sweep else []
    if points:
        show(sweep_table(points, f"{title}: other bandwidths"), arguments.markdown, console)
    if arguments.out:
        settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(arguments).items()}
        write(arguments.out, {**settings, "device": asdict(device), "link": asdict(link)}, work, runs, points)
        gantt(runs, arguments.out / CHART, title)
        console.print(f"written to {arguments.out}")


def work_of(arguments: argparse.Namespace, shape: Shape, device: Device, times: LayerTimes | None) -> Work:
    """Return the work of the options, or of measured ``times``."""
    prompt = Prompt(arguments.segments, arguments.segment_tokens, arguments.query, arguments.together)
    if arguments.layers is not None:
        shape = shape.cut(arguments.layers)
    narrow = AFTER if arguments.recompute == "cacheblend" else NARROW_OF[arguments.importance]
    layers = shape.layers if times is None else times.times.layers
    schedule = schedule_of(arguments.recompute, arguments.schedule, arguments.average)
    active = prompt.active(arguments.recompute, layers, schedule, arguments.seed)
    if times is None:
        roofline = Roofline(shape, device, arguments.attainable, arguments.weight_bits)
        times = roofline.times(active, prompt.rows, narrow)
        return Work(prompt.layout(), active, times, shape.row_bytes, narrow)
    row_bytes = times.row_bytes or shape.row_bytes
    return Work(prompt.layout(), times.active or active, times.times, row_bytes, narrow)


def title_of(arguments: argparse.Namespace, link: Link) -> str:
    rows = f"{arguments.segments} x {arguments.segment_tokens} + {arguments.query} rows"
    source = arguments.times.name if arguments.times else f"{arguments.model}, {arguments.device}"
    return f"{source}, {link.name}, {rows}, {arguments.recompute}"


def write(
    out: Path, settings: Mapping[str, Any], work: Work, runs: Sequence[StageRun], points: Sequence[SweepPoint]
) -> None:
    """Write all results as JSON, in seconds and bytes."""
    record = {
        "settings": settings,
        "times": asdict(work.times),
        "active_rows": [rows.numel() for rows in work.active],
        "row_bytes": work.row_bytes,
        "schedules": [run.record for run in runs],
        "sweep": [point.record for point in points],
    }
    write_atomic(out / "pipeline.json", json.dumps(record, indent=1) + "\n")
