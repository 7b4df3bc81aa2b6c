"""How far each memory method is from plain recomputation: ``python -m eval.fidelity [KEY=VALUE ...]``.

The scripted expert acts in embedded houses; before every step each method prefills its prompt, and transformers' own
forward computes the same prompt from nothing. One tiny random model per family shows that the engine is right; a
trained model (--model) shows what the deviation means.

With ``planner=NAME[,NAME...]`` it draws a curve instead: full recomputation plays real episodes with planner-tiny (or
--model), every method decides beside it at several shares of recomputed rows (--ratios), and the table and figure say
how often it takes the same next skill, and at what KL.

KEY=VALUE are overrides of `python -m eval.alfred`; those that would change nothing here are refused.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from eval.agreement import RATIOS, RULER, as_json, curve_figure, curve_table, measure_curve, reach_lines
from eval.cli import check_target
from eval.deviation import Deviation, measure
from eval.laws import LAWS
from eval.overrides import check_overrides, key_of
from eval.plots import check_figure
from eval.resume import use_threads
from eval.tables import number, percent
from eval.variants import check_methods, compose_variants, names
from keep_agent.brain import make_model, make_tokenizer
from keep_agent.console import make_console
from keep_agent.errors import ConfigError
from keep_agent.guard import guarded
from keep_agent.overrides import choose_model, expand_model
from memory.disk.atomic import write_atomic
from memory.engine.engine import Engine
from memory.engine.families import FAMILIES, tiny_model
from memory.tokenizer import load_tokenizer
from planners.checkpoint import BUNDLED

METHODS = ("full_recompute", "prefix_cache", "full_reuse", "epic", "cacheblend", "sparsex", "memart", "keep")
SETTING = ("env.skills=grounded", "env.observability=partial", "env.stream=2", "eval.episodes=1", "prompt.style=linked")
CURVE_SETTING = (*SETTING, "eval.episodes=20")  # of two eval.episodes the last counts
POSITIONS = 8192
MODELS = ("model", "model.name")  # keys that name one
PLANNER = "planner="
READ = ("env", "memory", "model", "planner", "prompt", "eval.episodes", "eval.seed", "eval.threads")
INSTEAD = {"memory": "planner=A,B or --methods"}  # a group would be that of all methods
TABLES, CURVE = ("methods", "families", "tokenizer"), ("ratios", "reach", "plot")  # options of only one of the two


def families(
    names: Sequence[str], tokenizer_folder: str, configs: Mapping[str, DictConfig]
) -> tuple[list[Deviation], dict[str, dict[str, float]]]:
    """Deviations and laws of a tiny random float32 model of each family."""
    deviations: list[Deviation] = []
    laws: dict[str, dict[str, float]] = {}
    tokenizer = load_tokenizer(tokenizer_folder) if names else None
    for name in names:
        shape = {"vocab_size": len(tokenizer), "max_position_embeddings": POSITIONS}
        with Engine(tiny_model(name, **shape), "inline") as engine:
            laws[name] = {law: figure(engine) for law, figure in LAWS.items()}
            deviations += measure(engine, tokenizer, configs, name)
    return deviations, laws


def trained(names: Sequence[str], configs: Mapping[str, DictConfig]) -> list[Deviation]:
    """Deviations of models by name or folder, as ``model=NAME`` takes them."""
    deviations: list[Deviation] = []
    seed = next(iter(configs.values())).eval.seed
    for name in names:
        model = next(iter(configs.values())).model.copy()
        model.name = name
        with Engine(make_model(model, seed)) as engine:
            deviations += measure(engine, make_tokenizer(model, engine.model), configs, name)
    return deviations


def deviation_table(deviations: Sequence[Deviation]) -> Table:
    table = Table(title="from plain recomputation of the same prompt: logits of the last row")
    for heading in ("model", "method"):
        table.add_column(heading, no_wrap=True)
    for heading in ("steps", "max |Δ|", "mean |Δ|", "max / largest", "KL, nats", "token %", "skill %", "computed"):
        table.add_column(heading, justify="right")
    for row in (deviation.summary() for deviation in deviations):
        shares = percent(row["same_token"]), percent(row["same_skill"]), number(row["computed_ratio"])
        figures = (f"{row[key]:.1e}" for key in ("max_abs", "mean_abs", "relative", "kl"))
        table.add_row(row["model"], row["method"], str(row["steps"]), *figures, *shares)
    return table


def law_table(laws: Mapping[str, Mapping[str, float]]) -> Table:
    table = Table(title="laws: largest difference / largest logit, float32")
    table.add_column("law", no_wrap=True)
    for family in laws:
        table.add_column(family, justify="right")
    for law in LAWS:
        table.add_row(law, *(f"{figures[law]:.0e}" for figures in laws.values()))
    return table


def _shares(text: str) -> list[float]:
    """Numbers from 0 to 1, none for ``own``; argparse turns the ValueError into a usage message."""
    if text == "own":
        return []
    shares = [float(part) for part in text.split(",")]
    if not all(0 <= share <= 1 for share in shares):
        raise ValueError(text)
    return shares


def _share(text: str) -> float:
    """Percent as a share; argparse turns the ValueError into a usage message."""
    share = float(text) / 100
    if not 0 < share <= 1:
        raise ValueError(text)
    return share


def parser() -> argparse.ArgumentParser:
    described = argparse.ArgumentParser(
        prog="keep-eval-fidelity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    described.add_argument("overrides", nargs="*", metavar="KEY=VALUE",
                           help=f"of planner=A,B, {', '.join(READ)}; after {' '.join(SETTING)}")  # fmt: skip
    described.add_argument("--families", type=names, metavar="A,B",
                           help=f"tiny random models, or none (default: {','.join(FAMILIES)})")  # fmt: skip
    described.add_argument("--model", action="append", default=[], help="a trained model: name or folder; repeatable")
    described.add_argument("--methods", type=names, metavar="A,B",
                           help=f"the first is the ruler for skills (default: {','.join(METHODS)})")  # fmt: skip
    described.add_argument("--tokenizer", help="of the random models (default: planner-tiny's)")
    shares = ",".join(map(str, RATIOS))
    described.add_argument("--ratios", type=_shares, metavar="R,R",
                           help=f"shares for the curve, or own: as configured (default: {shares})")  # fmt: skip
    described.add_argument("--reach", type=_share, metavar="PERCENT",
                           help="name each method's cheapest point of the curve that agrees so often")  # fmt: skip
    described.add_argument("--plot", type=Path, metavar="FILE", help="draw the curve there (PNG)")
    described.add_argument("--json", type=Path, metavar="FILE", help="write the tables there, too")
    return described


def report(arguments: argparse.Namespace, console: Console) -> None:
    planners = [override.removeprefix(PLANNER) for override in arguments.overrides if override.startswith(PLANNER)]
    overrides = [override for override in arguments.overrides if not override.startswith(PLANNER)]
    check_overrides(overrides, READ, INSTEAD)
    where = "the tables; leave it or planner= out" if planners else "the curve; give planner=A,B too, or leave it out"
    for option in TABLES if planners else CURVE:
        if getattr(arguments, option) is not None:
            raise ConfigError(f"--{option} is for {where}")
    if planners:
        methods = names(planners[-1])
        if len(planners) > 1 or not methods:
            raise ConfigError(f"{PLANNER}{' planner='.join(planners)} draws no curve; name methods in one planner=A,B")
        curve(methods, overrides, arguments, console)
    else:
        tables(overrides, arguments, console)


def check_outputs(arguments: argparse.Namespace) -> None:
    """Before anything is played: can the files be written that are asked for?"""
    if arguments.json:
        check_target(arguments.json)
    if arguments.plot:
        check_figure(arguments.plot)


def curve(methods: Sequence[str], overrides: Sequence[str], arguments: argparse.Namespace, console: Console) -> None:
    """Agreement with full recomputation against what is recomputed."""
    twice = arguments.model and any(key_of(override) in MODELS for override in overrides)
    if twice or len(arguments.model) > 1:
        raise ConfigError(f"a curve is one model's, --model {' --model '.join(arguments.model)} is not all: name one")
    chosen = [override for name in arguments.model for override in choose_model(name)]
    overrides = [*CURVE_SETTING, *expand_model(overrides), *chosen]
    configs = compose_variants([RULER, *(method for method in methods if method != RULER)], overrides)
    check_methods(configs)
    config = configs[RULER]
    model, shares = config.model, RATIOS if arguments.ratios is None else arguments.ratios
    check_outputs(arguments)
    use_threads(config)
    with Engine(make_model(model, config.eval.seed)) as engine, Progress(console=console, transient=True) as progress:
        task = progress.add_task("episodes", total=None)
        points = measure_curve(
            engine, make_tokenizer(model, engine.model), methods, shares, overrides,
            lambda done, total: progress.update(task, completed=done, total=total),
        )  # fmt: skip
    console.print(curve_table(points))
    if arguments.reach:
        for line in reach_lines(points, arguments.reach):
            console.print(line, highlight=False, soft_wrap=True)
    if arguments.json:
        write_atomic(arguments.json, json.dumps({"curve": as_json(points)}, indent=2) + "\n")
    if arguments.plot:
        curve_figure(points, arguments.plot)


def tables(overrides: Sequence[str], arguments: argparse.Namespace, console: Console) -> None:
    """Laws and deviations of tiny random models, deviations of trained ones."""
    methods = METHODS if arguments.methods is None else arguments.methods
    random = FAMILIES if arguments.families is None else arguments.families
    if not methods or not (random or arguments.model):
        raise ConfigError("nothing to measure: name --methods, and --families or --model")
    _check_models(overrides, random, arguments)
    configs = compose_variants(methods, [*SETTING, *overrides])
    check_methods(configs)
    check_outputs(arguments)
    use_threads(next(iter(configs.values())))
    deviations, laws = families(random, arguments.tokenizer or str(BUNDLED), configs)
    deviations += trained(arguments.model, configs)
    if laws:
        console.print(law_table(laws))
    console.print(deviation_table(deviations))
    if arguments.json:
        found: dict[str, Any] = {"laws": laws, "deviations": [deviation.summary() for deviation in deviations]}
        write_atomic(arguments.json, json.dumps(found, indent=2) + "\n")


def _check_models(overrides: Sequence[str], random: Sequence[str], arguments: argparse.Namespace) -> None:
    """Random models take no settings, trained ones no tokenizer but by model.tokenizer."""
    for override in overrides:
        if key_of(override) in MODELS:
            raise ConfigError("models are no override here; use --model NAME_OR_FOLDER")
        if key_of(override).startswith("model.") and not arguments.model:
            raise ConfigError(f"{override} changes no random model; name a --model, or leave it out")
    if arguments.tokenizer is not None and not random:
        raise ConfigError("--tokenizer is of random models; name --families, or use model.tokenizer")


def main() -> None:
    arguments = parser().parse_intermixed_args()
    sys.exit(guarded(lambda: report(arguments, make_console())))


if __name__ == "__main__":
    main()
