"""Commands of `eval.pipeline`: a measurement of prefills, or a simulation from given times of each layer."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status

from eval.common.tables import show
from eval.loading.compare import StageRun, run_stages, sweep
from eval.loading.costs import Roofline, Shape
from eval.loading.gantt import CHART, gantt
from eval.loading.machines import Device, link_named
from eval.loading.measure import PrefillBench, StageTurns, threads
from eval.loading.prompt import SyntheticPrompt, schedule_of
from eval.loading.simulate import Link
from eval.loading.tables import measured_sweep, measured_table, schedule_table, sweep_table
from eval.loading.workload import AFTER, POINT_OF, LayerTimes, LayerWork
from keep_agent.errors import ConfigError
from memory.engine.models.load import load_model
from memory.engine.transfer.link import CHUNK
from memory.engine.transformers.engine import TransformersEngine
from memory.files.atomic import write_atomic
from memory.recompute.first_tokens import FirstTokens
from memory.recompute.multi_hop import MultiHop, Schedule
from memory.recompute.none import Nothing
from memory.recompute.value_deviation import ValueDeviation

RATIOS = tuple(2.0 ** (half / 2) for half in range(-6, 7))  # ratios of loading to computing time
MEASURED_RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0)


def report_simulation(
    arguments: argparse.Namespace, shape: Shape, device: Device, link: Link, times: LayerTimes | None, console: Console
) -> None:
    """Simulate, print the tables, and write them with --out; ``times`` from a file replace those of ``device``."""
    work = work_of(arguments, shape, device, times)
    rows = f"{arguments.segments} x {arguments.segment_tokens} + {arguments.query} rows"
    source = arguments.times.name if arguments.times else f"{arguments.model}, {arguments.device}"
    title = f"{source}, {link.name}, {rows}, {arguments.recompute}"
    chunk = CHUNK if arguments.chunk is None else 1e6 * arguments.chunk
    runs = run_stages(arguments.loading, work, link, chunk)
    show(schedule_table(runs, title), arguments.markdown, console)
    points = sweep(arguments.loading, work, link, RATIOS, chunk) if arguments.sweep else []
    if points:
        show(sweep_table(points, f"{title}: other bandwidths"), arguments.markdown, console)
    if arguments.out:
        record = {
            "times": asdict(work.times),
            "active_rows": [rows.numel() for rows in work.active],
            "row_bytes": work.row_bytes,
            "schedules": [run.record for run in runs],
            "sweep": [point.record for point in points],
        }
        _write(arguments, record, runs, title, console, device=asdict(device), link=asdict(link))


def work_of(arguments: argparse.Namespace, shape: Shape, device: Device, times: LayerTimes | None) -> LayerWork:
    """Return the work that the options describe; measured ``times`` replace those of ``device``."""
    prompt, schedule, point = _plan(arguments)
    if arguments.layers is not None:
        shape = shape.first_layers(arguments.layers)
    layers = shape.layers if times is None else times.times.layers
    active = prompt.active(arguments.recompute, layers, schedule, arguments.seed)
    if times is None:
        roofline = Roofline(shape, device, arguments.attainable, arguments.weight_bits)
        return LayerWork(prompt.layout(), active, roofline.times(active, prompt.rows, point), shape.row_bytes, point)
    return LayerWork(prompt.layout(), times.active or active, times.times, times.row_bytes or shape.row_bytes, point)


def _plan(arguments: argparse.Namespace) -> tuple[SyntheticPrompt, Schedule, str]:
    """Return the prompt, the recomputation schedule, and the point at which rows are chosen, as in `LayerWork`."""
    prompt = SyntheticPrompt(arguments.segments, arguments.segment_tokens, arguments.query, arguments.together)
    point = AFTER if arguments.recompute == "cacheblend" else POINT_OF[arguments.importance]
    return prompt, schedule_of(arguments.recompute, arguments.schedule, arguments.average), point


def _write(
    arguments: argparse.Namespace, record: Mapping[str, Any], runs: Sequence[StageRun], title: str, console: Console,
    **machine: Any,
) -> None:  # fmt: skip
    """Write a chart of ``runs``, and a JSON file with settings, ``machine`` and ``record`` (in seconds and bytes)."""
    out, options = arguments.out, vars(arguments).items()
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in options}
    write_atomic(out / "pipeline.json", json.dumps({"settings": settings | machine, **record}, indent=1) + "\n")
    gantt(runs, out / CHART, title)
    console.print(f"written to {out}")


@dataclass(frozen=True)
class LinkResult:
    """Results of all loading stages over one link. ``ratio``: time to load all bytes / time to compute alone."""

    link: Link
    ratio: float
    turns: list[StageTurns]

    @property
    def record(self) -> dict[str, Any]:
        stages = [turns.record(self.link) for turns in self.turns]
        return {"link": asdict(self.link), "ratio": self.ratio, "stages": stages}


def report_measurement(arguments: argparse.Namespace, console: Console) -> None:
    """Measure all loading stages, print the tables, and write them with --out. Raises ConfigError."""
    if arguments.repeats < 1:
        raise ConfigError(f"--repeats {arguments.repeats} is too few; use 1 or more")
    with threads(arguments.threads) as count:
        bench = bench_of(arguments)
        seconds, nbytes = bench.compute_alone()
        results = []
        for link in _links(arguments, seconds, nbytes):
            with console.status("") as status:
                report = partial(_show_turn, status, link)
                turns = bench.measure(arguments.loading, link, arguments.repeats, report)
            results.append(LinkResult(link, turns[0].nbytes / link.bandwidth / seconds, turns))
    title = f"{arguments.model}, random weights, {count} threads, {bench.layout.rows} rows, {arguments.recompute}"
    for result in results:
        headline = f"{title}: {result.link.name}, loading {result.ratio:.2g} x computing"
        show(measured_table(result.turns, result.link, headline), arguments.markdown, console)
    if arguments.sweep:
        points = [(result.ratio, result.link, result.turns) for result in results]
        show(measured_sweep(points, f"{title}: other bandwidths"), arguments.markdown, console)
    if arguments.out:
        record = {"computing": seconds, "links": [result.record for result in results]}
        pairs = [turns.median_turn for turns in results[len(results) // 2].turns]  # the chart shows the middle ratio
        _write(arguments, record, [run for pair in pairs for run in (pair.measured, pair.simulated)], title, console)


def _show_turn(status: Status, link: Link, turn: int) -> None:
    status.update(f"{link.name}: turn {turn}")


def bench_of(arguments: argparse.Namespace) -> PrefillBench:
    """Make the benchmark that the options describe. An engine encodes the segments of the prompt as blocks."""
    model, (prompt, schedule, choice_point) = load_model(arguments.model, init="random"), _plan(arguments)
    recompute = {
        "keep": lambda: MultiHop(schedule),
        "cacheblend": lambda: ValueDeviation(schedule.average, shape=schedule.shape),
        "epic": FirstTokens,
        "full_reuse": Nothing,
    }[arguments.recompute]
    recompute()  # raises ConfigError for an impossible schedule
    with TransformersEngine(model, "inline") as engine:
        layout = prompt.encoded(engine)
    chunk = None if arguments.chunk is None else 1e6 * arguments.chunk
    return PrefillBench(model, layout, recompute, arguments.importance, choice_point, chunk)


def _links(arguments: argparse.Namespace, seconds: float, nbytes: int) -> list[Link]:
    """Return the link of ``--link``, or a link per ratio that loads ``nbytes`` in ratio x ``seconds`` of computing."""
    fixed = None if arguments.link is None else replace(link_named(arguments.link), per_copy=0.0)
    if fixed and not arguments.sweep and arguments.ratio is None:
        return [fixed]
    if not nbytes:
        raise ConfigError("nothing has to be loaded, so no bandwidth gives the ratio; recompute fewer rows")
    ratio = 1.0 if arguments.ratio is None else arguments.ratio
    ratios = MEASURED_RATIOS if arguments.sweep else (ratio,)
    if min(ratios) <= 0:
        raise ConfigError(f"--ratio {min(ratios):g} does not work; use more than 0")
    speeds = [nbytes / (ratio * seconds) for ratio in ratios]
    return [Link(f"{speed / 1e9:.3g} GB/s", speed, fixed.latency if fixed else 0.0) for speed in speeds]
