"""``keep-agent phases``: list the scenarios, or play one. Only playing loads torch."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from keep_agent.config.compose import compose_settings
from keep_agent.config.model_names import expand_model
from keep_agent.config.settings import check_settings
from keep_agent.scenarios.scenario import Scenario, find_scenario, shipped

LEAST = {"max_tokens": 1, "eval.seed": 0, "eval.threads": 1}
OPTIONAL = ("max_tokens", "eval.threads")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="keep-agent phases", description="Play a scenario of several phases and agents.")
    p.add_argument("scenario", nargs="?", help="YAML file, or name of a packaged scenario; default: list the names")
    p.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings: model, eval, max_tokens (per turn)")
    p.add_argument("--folder", type=Path, help="folder for permanent agents' KV rows, reused by later runs")
    p.add_argument("--bits", type=int, choices=(4, 8), default=4, help="bits per number of stored rows (%(default)s)")
    return p


def main(arguments: Sequence[str], console: Console) -> None:
    """Run the command. Raises KeepError, or a Hydra error for overrides that it cannot parse."""
    options = parser().parse_intermixed_args(arguments)
    if options.scenario is None:
        console.print(scenarios_table({name: find_scenario(name) for name in shipped()}))
        return
    scenario, config = find_scenario(options.scenario), compose_config(options.overrides)
    from keep_agent.scenarios.play import play  # lazy: it loads torch

    play(scenario, config, console, options.folder, options.bits)


def scenarios_table(scenarios: Mapping[str, Scenario]) -> Table:
    table = Table(title="scenarios: keep-agent phases NAME, or a file of your own")
    for heading in ("name", "agents", "phases", "turns", "about"):
        table.add_column(heading, no_wrap=heading == "name")
    for name, scenario in scenarios.items():
        agents = ", ".join(agent.key if agent.permanent else f"{agent.key}*" for agent in scenario.agents.values())
        phases = ", ".join(phase.name for phase in scenario.phases)
        table.add_row(name, agents, phases, str(scenario.turns), scenario.about)
    table.caption = "* forgets after each phase"
    return table


def compose_config(overrides: Sequence[str]) -> DictConfig:
    """Compose ``configs/phases.yaml`` with ``overrides``; ``model=`` takes any hub name or folder."""
    config = compose_settings("phases", expand_model(overrides))
    check_settings(config, LEAST, OPTIONAL, ())
    return config
