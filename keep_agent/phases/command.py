"""``keep-agent phases``: play a scenario, show it as it goes, and leave a run folder behind."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from keep_agent.brain import make_model, make_tokenizer
from keep_agent.overrides import expand_model
from keep_agent.phases.run import REUSE, Player, start_tokens, stop_tokens
from keep_agent.phases.scenario import Scenario, find_scenario, shipped
from keep_agent.phases.show import phase_text, scenarios_table, sums_table, turn_text
from keep_agent.phases.turns import PhasesFolder, summarize
from keep_agent.settings import check_settings
from memory.agents import AgentMemories
from memory.engine.engine import Engine
from memory.engine.special_tokens import special_tokens
from memory.match import TokenizerCoder
from memory.quantize import PackFormat

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
    """Raises KeepError, or what Hydra raises for a setting it does not know."""
    given = parser().parse_intermixed_args(arguments)
    if given.scenario is None:
        console.print(scenarios_table({name: find_scenario(name) for name in shipped()}))
        return
    play(find_scenario(given.scenario), composed(given.overrides), console, given.folder, given.bits)


def composed(overrides: Sequence[str]) -> DictConfig:
    """``configs/phases.yaml`` with ``overrides``; ``model=`` takes any hub name or folder."""
    with initialize_config_module("configs", version_base="1.3"):
        config = compose("phases", expand_model(overrides))
    check_settings(config, LEAST, OPTIONAL, ())
    return config


def play(
    scenario: Scenario, config: DictConfig, console: Console, folder: Path | None = None, bits: int = 4
) -> PhasesFolder:
    """Play ``scenario`` with the model of ``config``; the run folder with its turns."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)  # what is wrong with it shows before anything is computed
    if config.eval.threads is not None:
        torch.set_num_threads(config.eval.threads)
    with Engine(make_model(config.model, config.eval.seed)) as engine:
        tokenizer = make_tokenizer(config.model, engine.model)
        memories = AgentMemories(
            engine,
            TokenizerCoder(tokenizer),
            PackFormat(bits),
            folder,
            threshold=REUSE,
            start=start_tokens(tokenizer),
        )
        run_id = secrets.token_hex(4)
        settings = {"scenario": scenario.name, "run_id": run_id, "bits": bits, "folder": folder and str(folder)}
        settings |= {"weights": engine.model_key, **OmegaConf.to_container(config, resolve=True)}
        run = PhasesFolder.create(_place(scenario, config), settings)
        with memories:
            stops = stop_tokens(tokenizer, special_tokens(tokenizer, engine.model.module))
            player = Player(scenario, memories, stops, run_id, config.max_tokens)
            _show(player, run, console)
    _finish(run, settings, console)
    return run


def _place(scenario: Scenario, config: DictConfig) -> Path:
    return Path(config.eval.out) / f"{datetime.now():%Y-%m-%d_%H-%M-%S}_{scenario.name}"


def _show(player: Player, run: PhasesFolder, console: Console) -> None:
    """Commit each turn and print it; an interrupted run keeps those it has."""
    with _progress(console, player.scenario) as bar:
        shown = ""
        for turn in player.play():
            run.commit(turn)
            if turn.phase != shown:
                phase = next(phase for phase in player.scenario.phases if phase.name == turn.phase)
                bar.console.print(phase_text(phase, player.scenario), highlight=False)
                shown = turn.phase
            bar.console.print(turn_text(turn), soft_wrap=True, highlight=False)
            bar.update(bar.task_ids[0], advance=1)


@contextmanager
def _progress(console: Console, scenario: Scenario) -> Iterator[Progress]:
    columns = TextColumn("turns"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        bar.add_task("turns", total=scenario.turns)
        yield bar


def _finish(run: PhasesFolder, settings: dict[str, Any], console: Console) -> None:
    summary = summarize(run.results)
    path = run.write_summary({**summary, "config": settings})
    console.print()
    console.print(sums_table(summary, f"{settings['scenario']}: {settings['model']['name']}, {settings['bits']} bits"))
    console.print(f"{path.parent}", soft_wrap=True, highlight=False)
