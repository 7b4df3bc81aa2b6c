"""Quality beside speed: how often a method decides as full recomputation does, against how much it recomputes.

Full recomputation plays real episodes; before every step each variant decides too, by its own prompt. The share of rows
a variant recomputes is its own knob (an average, a ratio, the first k rows of a unit); what it computed is measured.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from omegaconf import DictConfig
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from eval.common.accepted_overrides import key_of
from eval.common.intervals import mean_interval, share_interval
from eval.common.plots import figure, style
from eval.common.tables import bounds, number, percent
from eval.common.variants import compose_variants
from eval.fidelity.deviation import Shadow, divergence, make_planners, play
from keep_agent.config.planner_factory import make_model, make_tokenizer
from memory.engine.base import Engine
from memory.engine.transformers.engine import TransformersEngine
from memory.files.atomic import write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedTokenizerBase

    from eval.fidelity.deviation import Choice
    from memory.prompt.report import Prefill

FIRST = "memory.recompute.first_tokens.FirstTokens"
FIRSTS = (1, 2, 3, 4, 6, 8)  # rows of a unit: a memory line has four to nine
KNOBS = {  # that say how much a recompute stage recomputes: a share, or so many rows
    FIRST: "memory.recompute.k",
    "memory.recompute.multi_hop.MultiHop": "memory.recompute.schedule.average",
    "memory.recompute.value_deviation.ValueDeviation": "memory.recompute.ratio",
    "memory.recompute.sparse_query.SparseQuery": "memory.recompute.share",
}


@dataclass
class Variant:
    """A method at one setting of its knob, over the steps of all episodes."""

    method: str
    base: str  # what it is composed of, without the knob
    knob: str  # "" for methods without one
    value: float
    same_skill: dict[int, list[float]] = field(default_factory=dict)  # per episode, step by step
    kl: dict[int, list[float]] = field(default_factory=dict)  # nats, KL(ruler || variant) of the next token
    computed: list[float] = field(default_factory=list)
    recomputed: list[float] = field(default_factory=list)
    episode: int = 0  # the one that is played

    @property
    def name(self) -> str:
        return f"{self.method} at {self.value:g}" if self.knob else self.method

    @property
    def text(self) -> str:
        """As `compose_variants` reads it."""
        return f"{self.name}:{self.base}" + (f"+{self.knob}={self.value:g}" if self.knob else "")

    def add(self, prefill: Prefill, reference: torch.Tensor, choice: Choice) -> None:
        self.same_skill.setdefault(self.episode, []).append(float(choice.same))
        self.kl.setdefault(self.episode, []).append(divergence(prefill, reference))
        self.computed.append(prefill.counts.computed_ratio)
        self.recomputed.append(prefill.counts.recomputed_ratio)

    def point(self) -> Point:
        return Point(
            self.method,
            f"{self.method}_{self.value:g}:{self.base}+{self.knob}={self.value:g}" if self.knob else self.base,
            self.knob,
            self.value,
            len(self.computed),
            _mean(self.computed),
            _mean(self.recomputed),
            _mean([value for values in self.same_skill.values() for value in values]),
            share_interval(self.same_skill),
            _mean([value for values in self.kl.values() for value in values]),
            mean_interval(self.kl),
        )


@dataclass(frozen=True, slots=True)
class Point:
    """One point of the curve; intervals are clustered by episode."""

    method: str
    variant: str  # as the command line names it
    knob: str
    value: float
    steps: int
    computed_ratio: float
    recomputed_ratio: float
    same_skill: float
    same_skill_interval: tuple[float, float] | None
    kl: float
    kl_interval: tuple[float, float] | None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def variants_of(label: str, base: str, config: DictConfig, ratios: Sequence[float]) -> list[Variant]:
    """The settings of a method's knob.

    A method without one, one whose ``base`` sets it, or any without ``ratios``, is a single point.
    """
    target = config.memory.recompute["_target_"]
    knob = KNOBS.get(target)
    if not ratios or knob is None or knob in map(key_of, base.split("+")[1:]):
        return [Variant(label, base, "", 0.0)]
    if config.memory.recompute.get("limit") is not None:  # else it would bound the knob
        base = f"{base}+memory.recompute.limit=null"
    return [Variant(label, base, knob, value) for value in (FIRSTS if target == FIRST else ratios)]


def measure_curve(
    engine: Engine,
    tokenizer: PreTrainedTokenizerBase,
    methods: Sequence[str],
    ratios: Sequence[float],
    overrides: Sequence[str],
    watch: Callable[[int, int], None] | None = None,
) -> list[Point]:
    """Points of all methods, of which the first leads; ``watch`` hears how many of how many episodes are done."""
    configs = compose_variants(methods, overrides)
    variants = [
        one
        for text, (label, config) in zip(methods, configs.items(), strict=True)
        for one in variants_of(label, text.removeprefix(f"{label}:"), config, ratios)
    ]
    named = {variant.name: variant for variant in variants}
    composed = compose_variants([variant.text for variant in variants], overrides)
    setting = next(iter(configs.values()))
    shadow = Shadow(engine, make_planners(engine, tokenizer, composed), named)
    for index in play(shadow, setting):
        for variant in variants:
            variant.episode = index
        if watch is not None:
            watch(index, setting.eval.episodes)
    return [variant.point() for variant in variants]


def curve_table(points: Sequence[Point]) -> Table:
    table = Table(title=f"next skill as full recomputation's, over {points[0].steps} steps that it led")
    for heading in ("method", "knob"):
        table.add_column(heading, no_wrap=True)
    for heading in ("recomputed", "computed", "same skill %", "95 % interval", "KL, nats"):
        table.add_column(heading, justify="right")
    for one in points:
        knob = f"{one.knob.rpartition('.')[2]}={one.value:g}" if one.knob else ""
        shares = number(one.recomputed_ratio), number(one.computed_ratio)
        agreement = percent(one.same_skill), bounds(one.same_skill_interval, 100, 1)
        table.add_row(one.method, knob, *shares, *agreement, f"{one.kl:.2e}")
    return table


def curve_figure(points: Sequence[Point], file: Path) -> None:
    """Agreement and KL against the share of token-layers computed."""
    panels: tuple[tuple[str, Callable[[Point], float]], ...] = (
        ("same next skill, %", lambda one: 100 * one.same_skill),
        ("KL to full recomputation, nats", lambda one: one.kl),
    )
    with figure(file, 2) as axes:
        for axis, (label, height) in zip(axes, panels, strict=True):
            axis.set_xlabel("token-layers computed / all", fontsize=8)
            axis.set_ylabel(label, fontsize=8)
            for index, (method, own) in enumerate(groupby(points[1:], key=lambda one: one.method), 1):
                line = sorted(own, key=lambda one: one.computed_ratio)
                axis.plot([one.computed_ratio for one in line], list(map(height, line)), label=method, **style(index))
        axes[1].set_yscale("log")
        axes[0].legend(fontsize=7)


def cheapest(points: Sequence[Point], agreement: float) -> list[Point | str]:
    """Of each method the point that computes least and decides in at least this share of steps as the ruler does.

    The name of a method that has none.
    """
    found: list[Point | str] = []
    for method, own in groupby(points[1:], key=lambda one: one.method):
        enough = [one for one in own if one.same_skill >= agreement]
        found.append(min(enough, key=lambda one: one.computed_ratio, default=method))
    return found


def reach_lines(points: Sequence[Point], agreement: float) -> list[str]:
    """What `cheapest` found, and how to time it."""
    found = cheapest(points, agreement)
    reached = [one for one in found if isinstance(one, Point)]
    told = [f"{one.variant} ({100 * one.same_skill:.1f} %, computes {one.computed_ratio:.2f})" for one in reached]
    told += [f"{name} does not reach it" for name in found if isinstance(name, str)]
    lines = [f"{100 * agreement:g} % agreement: {one}" for one in told]
    planners = ",".join(f'"{one.variant}"' for one in reached)
    return [*lines, f"python -m eval.latency 'latency.planners=[full_recompute,{planners}]'"] if reached else lines


def report_curve(
    methods: Sequence[str],
    shares: Sequence[float],
    config: DictConfig,
    overrides: Sequence[str],
    arguments: argparse.Namespace,
    console: Console,
) -> None:
    """Measure the curve with the model of ``config``, show it, and write the files that are asked for."""
    with (
        TransformersEngine(make_model(config.model, config.eval.seed)) as engine,
        Progress(console=console, transient=True) as progress,
    ):
        task = progress.add_task("episodes", total=None)
        points = measure_curve(
            engine, make_tokenizer(config.model, engine.model), methods, shares, overrides,
            lambda done, total: progress.update(task, completed=done, total=total),
        )  # fmt: skip
    console.print(curve_table(points))
    if arguments.reach:
        for line in reach_lines(points, arguments.reach):
            console.print(line, highlight=False, soft_wrap=True)
    if arguments.json:
        write_atomic(arguments.json, json.dumps({"curve": [asdict(point) for point in points]}, indent=2) + "\n")
    if arguments.plot:
        curve_figure(points, arguments.plot)
