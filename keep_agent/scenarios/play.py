"""Playing of a scenario on a terminal: prints its turns and writes a run folder. Loads torch."""

from __future__ import annotations

import secrets
from datetime import datetime
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from keep_agent.config.planner_factory import make_model, make_tokenizer
from keep_agent.scenarios.display import phase_text, sums_table, turn_text
from keep_agent.scenarios.runner import REUSE, Player, start_tokens, stop_tokens
from keep_agent.scenarios.scenario import Scenario
from keep_agent.scenarios.turn_records import ScenarioFolder, summarize
from memory.agents.manager import AgentMemories
from memory.agents.text_match import TokenizerCoder
from memory.engine.models.chat_template import special_tokens
from memory.engine.transformers.engine import TransformersEngine
from memory.kv_cache.quantization import PackFormat


def play(
    scenario: Scenario, config: DictConfig, console: Console, folder: Path | None = None, bits: int = 4
) -> ScenarioFolder:
    """Play ``scenario`` with the model of ``config``; return the run folder with its turns."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)  # fails before anything is computed
    if config.eval.threads is not None:
        torch.set_num_threads(config.eval.threads)
    with TransformersEngine(make_model(config.model, config.eval.seed)) as engine:
        tokenizer = make_tokenizer(config.model, engine.model)
        memories = AgentMemories(
            engine, TokenizerCoder(tokenizer), PackFormat(bits), folder, threshold=REUSE, start=start_tokens(tokenizer)
        )
        run_id = secrets.token_hex(4)
        settings = {"scenario": scenario.name, "run_id": run_id, "bits": bits, "folder": folder and str(folder)}
        settings |= {"weights": engine.model_key, **OmegaConf.to_container(config, resolve=True)}
        path = Path(config.eval.out) / f"{datetime.now():%Y-%m-%d_%H-%M-%S}_{scenario.name}"
        with ScenarioFolder.create(path, settings) as run:
            with memories:
                stops = stop_tokens(tokenizer, special_tokens(tokenizer, engine.model.module))
                _play(Player(scenario, memories, stops, run_id, config.max_tokens), run, console)
            summary = summarize(run.results)
            path = run.write_summary({**summary, "config": settings})
    console.print()
    console.print(sums_table(summary, f"{scenario.name}: {config.model.name}, {bits} bits"))
    console.print(f"{path.parent}", soft_wrap=True, highlight=False)
    return run


def _play(player: Player, run: ScenarioFolder, console: Console) -> None:
    """Commit each turn and print it, so that an interrupted run keeps its turns."""
    columns = TextColumn("turns"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("turns", total=player.scenario.turns)
        phases = {phase.name: phase for phase in player.scenario.phases}
        for turn in player.play():
            run.commit(turn)
            if (phase := phases.pop(turn.phase, None)) is not None:
                bar.console.print(phase_text(phase, player.scenario), highlight=False)
            bar.console.print(turn_text(turn), soft_wrap=True, highlight=False)
            bar.update(task, advance=1)
