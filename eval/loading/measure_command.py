"""Command ``eval.pipeline --measure``: the engine with random weights and a throttled link, beside the simulator."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console

from eval.common.tables import show
from eval.loading.bench import Bench, StageTurns, threads
from eval.loading.gantt import CHART, gantt
from eval.loading.machines import link_named
from eval.loading.prompt import Prompt, schedule_of
from eval.loading.simulated_link import Link
from eval.loading.tables import measured_sweep, measured_table
from eval.loading.workload import AFTER, NARROW_OF
from keep_agent.errors import ConfigError
from memory.engine.models.load import load_model
from memory.engine.transformers.engine import TransformersEngine
from memory.files.atomic import write_atomic
from memory.recompute.first_tokens import FirstTokens
from memory.recompute.multi_hop import MultiHop
from memory.recompute.none import Nothing
from memory.recompute.schedule import Schedule
from memory.recompute.value_deviation import ValueDeviation
from memory.stages import Recompute

RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class LinkResult:
    """Results of all stages over one link. ``ratio``: time of the link for all bytes / time of computing alone."""

    link: Link
    ratio: float
    turns: list[StageTurns]

    @property
    def record(self) -> dict[str, Any]:
        stages = [turns.record(self.link) for turns in self.turns]
        return {"link": asdict(self.link), "ratio": self.ratio, "stages": stages}


def report(arguments: argparse.Namespace, console: Console) -> None:
    """Measure all stages, print the tables, and write them if a folder is given.

    :raises ConfigError: an option makes no link, no turn, or no prompt
    """
    if arguments.repeats < 1:
        raise ConfigError(f"--repeats {arguments.repeats} is no number of repetitions; use 1 or more")
    with threads(arguments.threads) as count:
        bench = bench_of(arguments)
        seconds, nbytes = bench.alone()
        results = [
            _measure_link(bench, link, arguments, console, seconds) for link in _links(arguments, seconds, nbytes)
        ]
    title = f"{arguments.model}, random weights, {count} threads, {bench.layout.rows} rows, {arguments.recompute}"
    for result in results:
        headline = f"{title}: {result.link.name}, loading {result.ratio:.2g} x computing"
        show(measured_table(result.turns, result.link, headline), arguments.markdown, console)
    if arguments.sweep:
        points = [(result.ratio, result.link, result.turns) for result in results]
        show(measured_sweep(points, f"{title}: other bandwidths"), arguments.markdown, console)
    if arguments.out:
        _write(arguments, results, seconds, title)
        console.print(f"written to {arguments.out}")


def _measure_link(
    bench: Bench, link: Link, arguments: argparse.Namespace, console: Console, seconds: float
) -> LinkResult:
    """Measure all turns over ``link``; ``seconds``: time of computing alone."""
    with console.status("") as status:
        turns = bench.measure(
            arguments.loading, link, arguments.repeats, lambda turn: status.update(f"{link.name}: turn {turn}")
        )
    return LinkResult(link, turns[0].nbytes / link.bandwidth / seconds, turns)


def bench_of(arguments: argparse.Namespace) -> Bench:
    """Make the model and the prompt of the options; the engine encodes each unit as a block."""
    model = load_model(arguments.model, init="random")
    prompt = Prompt(arguments.segments, arguments.segment_tokens, arguments.query, arguments.together)
    schedule = schedule_of(arguments.recompute, arguments.schedule, arguments.average)
    recompute_of(arguments.recompute, schedule)
    with TransformersEngine(model, "inline") as engine:
        layout = prompt.encoded(engine)
    return Bench(
        model,
        layout,
        lambda: recompute_of(arguments.recompute, schedule),
        arguments.importance,
        AFTER if arguments.recompute == "cacheblend" else NARROW_OF[arguments.importance],
        None if arguments.chunk is None else 1e6 * arguments.chunk,
    )


def recompute_of(method: str, schedule: Schedule) -> Recompute:
    """Return the recompute stage of a method."""
    stages: dict[str, Recompute] = {
        "keep": MultiHop(schedule),
        "cacheblend": ValueDeviation(schedule.average, shape=schedule.shape),
        "epic": FirstTokens(),
        "full_reuse": Nothing(),
    }
    return stages[method]


def _links(arguments: argparse.Namespace, seconds: float, nbytes: int) -> list[Link]:
    """Return the link of ``--link``, or links whose bandwidths give the ratios of loading to computing."""
    fixed = None if arguments.link is None else replace(link_named(arguments.link), per_copy=0.0)
    if fixed and not arguments.sweep and arguments.ratio is None:
        return [fixed]
    if not nbytes:
        raise ConfigError("nothing has to be loaded, so no bandwidth gives a ratio; recompute fewer rows")
    ratios: Sequence[float] = RATIOS if arguments.sweep else (1.0 if arguments.ratio is None else arguments.ratio,)
    if min(ratios) <= 0:
        raise ConfigError(f"--ratio {min(ratios):g} does not work; use more than 0")
    speeds = [nbytes / (ratio * seconds) for ratio in ratios]
    return [Link(f"{speed / 1e9:.3g} GB/s", speed, fixed.latency if fixed else 0.0) for speed in speeds]


def _write(arguments: argparse.Namespace, results: Sequence[LinkResult], seconds: float, title: str) -> None:
    """Write all results as JSON, and the typical turns over the middle link as a chart."""
    settings = {key: str(value) if key == "out" else value for key, value in vars(arguments).items()}
    record = {"settings": settings, "computing": seconds, "links": [result.record for result in results]}
    write_atomic(arguments.out / "pipeline.json", json.dumps(record, indent=1) + "\n")
    middle = results[len(results) // 2]
    pairs = [turns.typical for turns in middle.turns]
    gantt([run for pair in pairs for run in (pair.measured, pair.simulated)], arguments.out / CHART, title)
