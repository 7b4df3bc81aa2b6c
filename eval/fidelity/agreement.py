"""Agreement curve: how often a method chooses full recomputation's skill, against the share of rows it computes.

Full recomputation plays episodes. Before every step each variant of a method also chooses a skill, from its own prompt.
A variant sets one option of its method (the knob): the share or number of recomputed rows. The curve shows the
share of rows that the variant really computed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from omegaconf import DictConfig
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from eval.common.intervals import mean_interval, share_interval
from eval.common.plots import figure, style
from eval.common.tables import bounds, number, percent, table_of
from eval.common.variants import compose_variants, key_of
from eval.fidelity.deviation import PlannerGroup, SkillChoice, divergence, make_planners, play_episodes
from keep_agent.config.planner_factory import make_model, make_tokenizer
from memory.engine.base import Engine
from memory.engine.transformers.engine import TransformersEngine
from memory.files.atomic import write_atomic
from memory.prompt.report import Prefill

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FIRST_TOKENS = "memory.recompute.first_tokens.FirstTokens"
FIRST_TOKEN_COUNTS = (1, 2, 3, 4, 6, 8)  # recomputed rows of a segment, which has four to nine rows
KNOBS = {  # by class of a recompute stage: the option that sets its share or number of recomputed rows
    FIRST_TOKENS: "memory.recompute.k",
    "memory.recompute.multi_hop.MultiHop": "memory.recompute.schedule.average",
    "memory.recompute.value_deviation.ValueDeviation": "memory.recompute.ratio",
    "memory.recompute.sparse_query.SparseQuery": "memory.recompute.share",
}


@dataclass
class Variant:
    """Measurements of a method at one value of its knob, over the steps of all episodes."""

    method: str
    base: str  # the method as on the command line, without the knob
    knob: str  # "" for methods without a knob
    value: float
    same_skill: dict[int, list[float]] = field(default_factory=dict)  # by episode: 1.0 (the same) or 0.0 for each step
    kl: dict[int, list[float]] = field(default_factory=dict)  # by episode: KL(first method || variant), nats
    computed: list[float] = field(default_factory=list)  # `computed_ratio` of each step
    recomputed: list[float] = field(default_factory=list)
    episode: int = 0  # index of the current episode

    @property
    def name(self) -> str:
        return f"{self.method} at {self.value:g}" if self.knob else self.method

    @property
    def text(self) -> str:
        """Variant as text that `compose_variants` reads."""
        return f"{self.name}:{self.base}" + (f"+{self.knob}={self.value:g}" if self.knob else "")

    def add(self, prefill: Prefill, reference: torch.Tensor, choice: SkillChoice) -> None:
        self.same_skill.setdefault(self.episode, []).append(float(choice.same))
        self.kl.setdefault(self.episode, []).append(divergence(prefill, reference))
        self.computed.append(prefill.counts.computed_ratio)
        self.recomputed.append(prefill.counts.recomputed_ratio)

    def point(self) -> Point:
        variant = f"{self.method}_{self.value:g}:{self.base}+{self.knob}={self.value:g}" if self.knob else self.base
        same, kl = (_mean([*chain.from_iterable(by.values())]) for by in (self.same_skill, self.kl))
        intervals = share_interval(self.same_skill), mean_interval(self.kl)
        ratios = len(self.computed), _mean(self.computed), _mean(self.recomputed)
        return Point(self.method, variant, self.knob, self.value, *ratios, same, intervals[0], kl, intervals[1])


@dataclass(frozen=True, slots=True)
class Point:
    """One point of the curve; intervals are clustered by episode."""

    method: str
    variant: str  # as on the command line
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
    """Return a variant for each value of the method's knob.

    Without a knob, without ``ratios``, or if ``base`` already sets the knob, the method itself is the only variant.
    """
    target = config.memory.recompute["_target_"]
    knob = KNOBS.get(target)
    if not ratios or knob is None or knob in map(key_of, base.split("+")[1:]):
        return [Variant(label, base, "", 0.0)]
    if config.memory.recompute.get("limit") is not None:  # this limit would cap the share
        base = f"{base}+memory.recompute.limit=null"
    return [Variant(label, base, knob, value) for value in (FIRST_TOKEN_COUNTS if target == FIRST_TOKENS else ratios)]


def measure_curve(
    engine: Engine, tokenizer: PreTrainedTokenizerBase, methods: Sequence[str], ratios: Sequence[float],
    overrides: Sequence[str], watch: Callable[[int, int], None],
) -> list[Point]:  # fmt: skip
    """Measure all methods; the first method acts. ``watch`` gets the numbers of finished and of all episodes."""
    configs = compose_variants(methods, overrides)
    variants = [
        variant
        for text, (label, config) in zip(methods, configs.items(), strict=True)
        for variant in variants_of(label, text.removeprefix(f"{label}:"), config, ratios)
    ]
    composed = compose_variants([variant.text for variant in variants], overrides)
    setting = next(iter(configs.values()))
    records = {variant.name: variant for variant in variants}
    group = PlannerGroup(engine, make_planners(engine, tokenizer, composed), records)
    for index in play_episodes(group, setting):
        for variant in variants:
            variant.episode = index
        watch(index, setting.eval.episodes)
    return [variant.point() for variant in variants]


def curve_table(points: Sequence[Point]) -> Table:
    title = f"agreement with full recomputation's next skill, over its {points[0].steps} steps"
    headings, rows = ("recomputed", "computed", "same skill %", "95 % interval", "KL, nats"), []
    for point in points:
        knob = f"{point.knob.rpartition('.')[2]}={point.value:g}" if point.knob else ""
        shares = number(point.recomputed_ratio), number(point.computed_ratio)
        agreement = percent(point.same_skill), bounds(point.same_skill_interval, 100, 1)
        rows.append([point.method, knob, *shares, *agreement, f"{point.kl:.2e}"])
    return table_of(title, ["method", "knob"], headings, rows, wrap=True)


def curve_figure(points: Sequence[Point], file: Path) -> None:
    """Draw agreement and KL against the share of token-layers computed."""
    panels: tuple[tuple[str, Callable[[Point], float]], ...] = (
        ("same next skill, %", lambda point: 100 * point.same_skill),
        ("KL to full recomputation, nats", lambda point: point.kl),
    )
    with figure(file, 2) as axes:
        for axis, (label, height) in zip(axes, panels, strict=True):
            axis.set_xlabel("share of token-layers computed", fontsize=8)
            axis.set_ylabel(label, fontsize=8)
            for index, (method, group) in enumerate(groupby(points[1:], key=lambda point: point.method), 1):
                line = sorted(group, key=lambda point: point.computed_ratio)
                axis.plot([p.computed_ratio for p in line], list(map(height, line)), label=method, **style(index))
        axes[1].set_yscale("log")
        axes[0].legend(fontsize=7)


def cheapest(points: Sequence[Point], agreement: float) -> list[Point | str]:
    """Return per method the point of least computing that reaches ``agreement``, or the method's name if none does."""
    return [
        min((p for p in group if p.same_skill >= agreement), key=lambda p: p.computed_ratio, default=method)
        for method, group in groupby(points[1:], key=lambda point: point.method)
    ]


def reach_lines(points: Sequence[Point], agreement: float) -> list[str]:
    """Describe the points of `cheapest`, and give the command that measures their latency."""
    results = cheapest(points, agreement)
    successes = [point for point in results if isinstance(point, Point)]
    texts = [f"{p.variant} ({100 * p.same_skill:.1f} %, computes {p.computed_ratio:.2f})" for p in successes]
    texts += [f"{name} does not reach it" for name in results if isinstance(name, str)]
    planners = ",".join(f'"{point.variant}"' for point in successes)
    command = f"python -m eval.latency 'latency.planners=[full_recompute,{planners}]'"
    return [*(f"{100 * agreement:g} % agreement: {text}" for text in texts), *([command] if successes else [])]


def report_curve(
    methods: Sequence[str], shares: Sequence[float], config: DictConfig, overrides: Sequence[str],
    arguments: argparse.Namespace, console: Console,
) -> None:  # fmt: skip
    """Measure the curve with the model of ``config``, print it, and write the output files."""
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
