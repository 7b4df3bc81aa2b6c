"""Tables of laws and deviations: tiny random models of each family, and trained models."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from eval.common.tables import number, percent
from eval.fidelity.deviation import Deviation, measure
from eval.fidelity.laws import LAWS
from keep_agent.config.planner_factory import make_model, make_tokenizer
from memory.engine.models.tiny_models import tiny_model
from memory.engine.models.tokenizer import load_tokenizer
from memory.engine.transformers.engine import TransformersEngine
from memory.files.atomic import write_atomic
from planners.tiny.checkpoint import BUNDLED

if TYPE_CHECKING:
    from omegaconf import DictConfig

POSITIONS = 8192


def families(
    names: Sequence[str], tokenizer_folder: str, configs: Mapping[str, DictConfig]
) -> tuple[list[Deviation], dict[str, dict[str, float]]]:
    """Measure deviations and laws of a tiny random float32 model of each family."""
    deviations: list[Deviation] = []
    laws: dict[str, dict[str, float]] = {}
    tokenizer = load_tokenizer(tokenizer_folder) if names else None
    for name in names:
        shape = {"vocab_size": len(tokenizer), "max_position_embeddings": POSITIONS}
        with TransformersEngine(tiny_model(name, **shape), "inline") as engine:
            laws[name] = {law: figure(engine) for law, figure in LAWS.items()}
            deviations += measure(engine, tokenizer, configs, name)
    return deviations, laws


def trained(names: Sequence[str], configs: Mapping[str, DictConfig]) -> list[Deviation]:
    """Measure deviations of trained models; ``names`` are names or folders, as in ``model=NAME``."""
    deviations: list[Deviation] = []
    seed = next(iter(configs.values())).eval.seed
    for name in names:
        model = next(iter(configs.values())).model.copy()
        model.name = name
        with TransformersEngine(make_model(model, seed)) as engine:
            deviations += measure(engine, make_tokenizer(model, engine.model), configs, name)
    return deviations


def deviation_table(deviations: Sequence[Deviation]) -> Table:
    table = Table(title="deviation from plain recomputation of the same prompt: logits of the last row")
    for heading in ("model", "method"):
        table.add_column(heading, no_wrap=True)
    headings = ("steps", "max |Δ|", "mean |Δ|", "max |Δ| / max |logit|", "KL, nats", "token %", "skill %", "computed")
    for heading in headings:
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


def report_deviations(
    random: Sequence[str], configs: Mapping[str, DictConfig], arguments: argparse.Namespace, console: Console
) -> None:
    """Measure the ``random`` families and the trained models, print the tables, and write the JSON file."""
    deviations, laws = families(random, arguments.tokenizer or str(BUNDLED), configs)
    deviations += trained(arguments.model, configs)
    if laws:
        console.print(law_table(laws))
    console.print(deviation_table(deviations))
    if arguments.json:
        record: dict[str, Any] = {"laws": laws, "deviations": [deviation.summary() for deviation in deviations]}
        write_atomic(arguments.json, json.dumps(record, indent=2) + "\n")
