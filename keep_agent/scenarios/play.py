"""Terminal player of scenarios: prints the turns and writes a run folder. Loads torch."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from keep_agent.config.planner_factory import make_model, make_tokenizer
from keep_agent.scenarios.runner import REUSE, Player, start_tokens, stop_tokens
from keep_agent.scenarios.scenario import Phase, Scenario
from keep_agent.scenarios.turn_records import COLD, ScenarioFolder, Turn, summarize
from memory.agents.manager import AgentMemories
from memory.agents.text_match import TokenizerCoder
from memory.engine.models.chat_template import special_tokens
from memory.engine.transformers.engine import TransformersEngine
from memory.kv_cache.quantization import PackFormat


def play(
    scenario: Scenario, config: DictConfig, console: Console, folder: Path | None = None, bits: int = 4
) -> ScenarioFolder:
    """Play a scenario; return the run folder. ``folder`` (another) keeps permanent agents' KV rows for later runs."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)  # an unusable folder fails before anything is computed
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
    console.print(cost_table(summary, f"{scenario.name}: {config.model.name}, {bits} bits"))
    console.print(f"{path.parent}", soft_wrap=True, highlight=False)
    return run


def _play(player: Player, run: ScenarioFolder, console: Console) -> None:
    """Play and print all turns. A turn is committed when it is complete, so that an interrupted run keeps it."""
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


def phase_text(phase: Phase, scenario: Scenario) -> Text:
    names = ", ".join(scenario.agents[agent].name for agent in phase.participants)
    return Text.assemble("\n", (phase.name, "bold"), f": {names}")


def turn_text(turn: Turn) -> Text:
    match = f"{turn.kind}: kept {turn.kept}" if turn.hit else COLD
    cost = f"  [{match}, new {turn.new}, {turn.ttft_ms:.0f} ms]"
    return Text.assemble((f"{turn.name}: ", "cyan"), turn.text, (cost, "dim"))


def cost_table(summary: Mapping[str, Any], title: str) -> Table:
    """Return a table with a row per agent and one for all; ``saved %`` is the reused share of the prompt tokens."""
    table = Table(title=title)
    table.add_column("agent", no_wrap=True)
    for heading in ("turns", "hits", "prompt tokens", "computed", "saved", "saved %", "ttft ms (p50)", "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for agent, sums in summary["per_agent"].items():
        table.add_row(agent, *_cells(sums))
    table.add_section()
    table.add_row("all", *_cells(summary))
    return table


def _cells(sums: Mapping[str, Any]) -> Iterable[str]:
    counts = (f"{sums[name]:,}" for name in ("turns", "hits", "prompt_tokens", "prefill_tokens", "saved_tokens"))
    return *counts, f"{100 * sums['saved']:.1f}", f"{sums['ttft_ms']:.1f}", f"{sums['seconds']:.2f}"
