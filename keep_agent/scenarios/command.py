"""``keep-agent phases``: list the scenarios, or play one. Only playing loads torch."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from keep_agent.config.compose import compose_settings
from keep_agent.config.model_override import expand_model
from keep_agent.config.settings import check_settings
from keep_agent.scenarios.display import scenarios_table
from keep_agent.scenarios.scenario import find_scenario, shipped

LEAST = {"max_tokens": 1, "eval.seed": 0, "eval.threads": 1}
OPTIONAL = ("max_tokens", "eval.threads")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="keep-agent phases", description="Play a scenario of several phases and agents.")
    p.add_argument("scenario", nargs="?", help="a YAML file, or the name of one in the package; none: list those")
    p.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of model, eval and max_tokens (of a turn)")
    p.add_argument("--folder", type=Path, help="permanent agents' rows go there; a later run finds them")
    p.add_argument("--bits", type=int, choices=(4, 8), default=4, help="of a stored number (4)")
    return p


def main(arguments: Sequence[str], console: Console) -> None:
    """Raises KeepError, or what Hydra raises for overrides that it cannot read."""
    given = parser().parse_intermixed_args(arguments)
    if given.scenario is None:
        console.print(scenarios_table({name: find_scenario(name) for name in shipped()}))
        return
    scenario, config = find_scenario(given.scenario), composed(given.overrides)
    from keep_agent.scenarios.play import play  # here: it loads torch

    play(scenario, config, console, given.folder, given.bits)


def composed(overrides: Sequence[str]) -> DictConfig:
    """``configs/phases.yaml`` with ``overrides``; ``model=`` takes any hub name or folder."""
    config = compose_settings("phases", expand_model(overrides))
    check_settings(config, LEAST, OPTIONAL, ())
    return config
