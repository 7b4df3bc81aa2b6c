"""Deviation of each memory method from plain recomputation: ``python -m eval.fidelity [KEY=VALUE ...]``.

The scripted expert acts in generated houses. Before every step each method prefills its prompt, and transformers' own
forward computes the same prompt without a cache. A tiny random model per family verifies the engine; a trained model
(--model) shows the effect of the deviation on decisions.

With ``planner=NAME[,NAME...]`` the command draws a curve instead: full recomputation plays episodes with planner-tiny
(or --model). At each step every method chooses a skill, with several shares of recomputed rows (--ratios). The table
and the figure show how often a method chooses full recomputation's skill, and the KL divergence of the next token.

KEY=VALUE are overrides of `python -m eval.alfred`; overrides without effect here are rejected.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from eval.common.hydra_command import check_target
from eval.common.options import command_parser
from eval.common.plots import check_figure
from eval.common.resume import use_threads
from eval.common.variants import check_methods, check_overrides, compose_variants, key_of, name_list
from keep_agent.config.model_names import check_model, choose_model, expand_model
from keep_agent.console import make_console
from keep_agent.errors import ConfigError, check_choice
from keep_agent.guard import guarded
from memory.engine.models.model_shapes import FAMILIES

BASELINE = "full_recompute"
RATIOS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
METHODS = (
    "full_recompute", "prefix_cache", "full_reuse", "epic", "cacheblend", "sparsex", "memart", "keep",
    "keep_contextual",
)  # fmt: skip
SETTING = ("env.skills=grounded", "env.observability=partial", "env.stream=2", "eval.episodes=1", "prompt.style=linked")
CURVE_SETTING = (*SETTING, "eval.episodes=20")  # the last value of a repeated override wins
MODELS = ("model", "model.name")  # keys that name a model
PLANNER = "planner="
KEYS = ("env", "memory", "model", "planner", "prompt", "eval.episodes", "eval.seed", "eval.threads")
REPLACEMENTS = {"memory": "planner=A,B or --methods"}  # an override would apply to every method
TABLE_OPTIONS, CURVE_OPTIONS = ("methods", "families", "tokenizer"), ("ratios", "reach", "plot")


def _shares(text: str) -> list[float]:
    """Parse numbers from 0 to 1; ``own`` gives an empty list."""
    shares = [] if text == "own" else [_number(part) for part in text.split(",")]
    if not all(0 <= share <= 1 for share in shares):
        raise argparse.ArgumentTypeError(f"{text} is invalid; give shares from 0 to 1, as in 0,0.1,0.5, or own")
    return shares


def _share(text: str) -> float:
    if not 0 < _number(text) <= 100:
        raise argparse.ArgumentTypeError(f"{text} is invalid; give percent above 0, up to 100")
    return _number(text) / 100


def _number(text: str) -> float:
    """Parse a number; other texts give NaN, which fails every comparison."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def parser() -> argparse.ArgumentParser:
    p = command_parser(__doc__, "keep-eval-fidelity")
    add = p.add_argument
    overrides = f"planner=A,B, or overrides of {', '.join(KEYS)}; applied after {' '.join(SETTING)}"
    families = f"families of the tiny random models, or none (default: {','.join(FAMILIES)})"
    methods = f"methods; their skills are compared with the first method's (default: {','.join(METHODS)})"
    ratios = f"recomputed shares of the curve; own: each method's own share (default: {','.join(map(str, RATIOS))})"
    reach = "print, for each method, the cheapest point of the curve with at least this agreement"
    add("overrides", nargs="*", metavar="KEY=VALUE", help=overrides)
    add("--families", type=name_list, metavar="A,B", help=families)
    add("--model", action="append", default=[], help="a trained model: name or folder; repeatable")
    add("--methods", type=name_list, metavar="A,B", help=methods)
    add("--tokenizer", help="tokenizer of the random models (default: planner-tiny's)")
    add("--ratios", type=_shares, metavar="R,R", help=ratios)
    add("--reach", type=_share, metavar="PERCENT", help=reach)
    add("--plot", type=Path, metavar="FILE", help="file for a figure of the curve, such as curve.png")
    add("--json", type=Path, metavar="FILE", help="also write the tables to a file")
    return p


def report(arguments: argparse.Namespace, console: Console) -> None:
    planners = [override.removeprefix(PLANNER) for override in arguments.overrides if override.startswith(PLANNER)]
    overrides = [override for override in arguments.overrides if not override.startswith(PLANNER)]
    check_overrides(overrides, KEYS, REPLACEMENTS)
    where = "the tables; omit it or planner=" if planners else "the curve; add planner=A,B, or omit it"
    for option in TABLE_OPTIONS if planners else CURVE_OPTIONS:
        if getattr(arguments, option) is not None:
            raise ConfigError(f"--{option} is for {where}")
    if not planners:
        tables(overrides, arguments, console)
        return
    methods = name_list(planners[-1])
    if len(planners) > 1 or not methods:
        raise ConfigError(f"{PLANNER}{' planner='.join(planners)} is not a list of methods; use one planner=A,B")
    curve(methods, overrides, arguments, console)


def check_outputs(arguments: argparse.Namespace) -> None:
    if arguments.json:
        check_target(arguments.json)
    if arguments.plot:
        check_figure(arguments.plot)


def curve(methods: Sequence[str], overrides: Sequence[str], arguments: argparse.Namespace, console: Console) -> None:
    """Measure agreement with full recomputation against the share of computed rows."""
    twice = arguments.model and any(key_of(override) in MODELS for override in overrides)
    if twice or len(arguments.model) > 1:
        raise ConfigError(
            f"--model {' --model '.join(arguments.model)} is not the only model named; name one model for a curve"
        )
    model_overrides = [override for name in arguments.model for override in choose_model(name)]
    overrides = [*CURVE_SETTING, *expand_model(overrides), *model_overrides]
    methods = [BASELINE, *(method for method in methods if method != BASELINE)]
    configs = compose_variants(methods, overrides)
    check_methods(configs)
    check_outputs(arguments)
    use_threads(configs[BASELINE])
    from eval.fidelity.agreement import report_curve  # lazy: options are checked before it loads torch

    shares = RATIOS if arguments.ratios is None else arguments.ratios
    report_curve(methods, shares, configs[BASELINE], overrides, arguments, console)


def tables(overrides: Sequence[str], arguments: argparse.Namespace, console: Console) -> None:
    """Report engine laws and deviations of tiny random models, and deviations of trained models."""
    methods = METHODS if arguments.methods is None else arguments.methods
    random = FAMILIES if arguments.families is None else arguments.families
    if not methods or not (random or arguments.model):
        raise ConfigError("nothing to measure: name --methods, and --families or --model")
    for family in random:
        check_choice("--families", family, FAMILIES)
    for override in overrides:
        if key_of(override) in MODELS:
            raise ConfigError(f"{override} does not select a model here; use --model NAME_OR_FOLDER")
        if key_of(override).startswith("model.") and not arguments.model:
            raise ConfigError(f"{override} does not apply to random models; name a --model, or omit it")
    if arguments.tokenizer is not None and not random:
        raise ConfigError("--tokenizer applies to random models; name --families, or use model.tokenizer")
    for name in (*arguments.model, *([arguments.tokenizer] if arguments.tokenizer else [])):
        check_model(name)
    configs = compose_variants(methods, [*SETTING, *overrides])
    check_methods(configs)
    check_outputs(arguments)
    use_threads(next(iter(configs.values())))
    from eval.fidelity.deviation import report_deviations  # lazy: it loads torch

    report_deviations(random, configs, arguments, console)


def main() -> None:
    arguments = parser().parse_intermixed_args()
    sys.exit(guarded(lambda: report(arguments, make_console())))


if __name__ == "__main__":
    main()
