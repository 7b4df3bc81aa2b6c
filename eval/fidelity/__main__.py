"""Distance of each memory method from plain recomputation: ``python -m eval.fidelity [KEY=VALUE ...]``.

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
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from eval.common.accepted_overrides import check_overrides, key_of
from eval.common.hydra_command import check_target
from eval.common.plots import check_figure
from eval.common.resume import use_threads
from eval.common.variants import check_methods, compose_variants, names
from keep_agent.config.model_names import check_model
from keep_agent.config.model_override import choose_model, expand_model
from keep_agent.console import make_console
from keep_agent.errors import ConfigError, check_choice
from keep_agent.guard import guarded
from memory.engine.models.tiny_model_configs import FAMILIES

RULER = "full_recompute"
RATIOS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
METHODS = ("full_recompute", "prefix_cache", "full_reuse", "epic", "cacheblend", "sparsex", "memart", "keep")
SETTING = ("env.skills=grounded", "env.observability=partial", "env.stream=2", "eval.episodes=1", "prompt.style=linked")
CURVE_SETTING = (*SETTING, "eval.episodes=20")  # of two eval.episodes the last counts
MODELS = ("model", "model.name")  # keys that name one
PLANNER = "planner="
READ = ("env", "memory", "model", "planner", "prompt", "eval.episodes", "eval.seed", "eval.threads")
INSTEAD = {"memory": "planner=A,B or --methods"}  # a group would be that of all methods
TABLES, CURVE = ("methods", "families", "tokenizer"), ("ratios", "reach", "plot")  # options of only one of the two


def _shares(text: str) -> list[float]:
    """Numbers from 0 to 1, none for ``own``."""
    if text == "own":
        return []
    shares = [_number(part) for part in text.split(",")]
    if not all(0 <= share <= 1 for share in shares):
        raise argparse.ArgumentTypeError(f"{text} does not work; give shares from 0 to 1, as in 0,0.1,0.5, or own")
    return shares


def _share(text: str) -> float:
    """Percent as a share."""
    if not 0 < _number(text) <= 100:
        raise argparse.ArgumentTypeError(f"{text} does not work; give percent above 0, up to 100")
    return _number(text) / 100


def _number(text: str) -> float:
    """NaN, which no comparison holds for, where the text is no number."""
    try:
        return float(text)
    except ValueError:
        return math.nan


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
    methods = [RULER, *(method for method in methods if method != RULER)]
    configs = compose_variants(methods, overrides)
    check_methods(configs)
    config = configs[RULER]
    shares = RATIOS if arguments.ratios is None else arguments.ratios
    check_outputs(arguments)
    use_threads(config)
    from eval.fidelity.agreement import report_curve  # here: it loads torch, and what is mistyped is refused before

    report_curve(methods, shares, config, overrides, arguments, console)


def tables(overrides: Sequence[str], arguments: argparse.Namespace, console: Console) -> None:
    """Laws and deviations of tiny random models, deviations of trained ones."""
    methods = METHODS if arguments.methods is None else arguments.methods
    random = FAMILIES if arguments.families is None else arguments.families
    if not methods or not (random or arguments.model):
        raise ConfigError("nothing to measure: name --methods, and --families or --model")
    for family in random:
        check_choice("--families", family, FAMILIES)
    _check_models(overrides, random, arguments)
    for name in (*arguments.model, *([arguments.tokenizer] if arguments.tokenizer else [])):
        check_model(name)
    configs = compose_variants(methods, [*SETTING, *overrides])
    check_methods(configs)
    check_outputs(arguments)
    use_threads(next(iter(configs.values())))
    from eval.fidelity.deviation_tables import (
        report_deviations,  # here: it loads torch, and what is mistyped is refused before
    )

    report_deviations(random, configs, arguments, console)


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
