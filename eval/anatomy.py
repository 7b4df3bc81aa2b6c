"""Anatomy of a run's memory: ``python -m eval.anatomy RUN [--markdown]``.

Two tables from the trace: the rate at which segments of each kind change (as in Figure 5 of KEEP, arXiv 2602.23592),
and the rows computed and bytes loaded at each layer (as in its Figure 7).
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from eval.common.tables import Column, make_table, number, percent, show
from keep_agent.console import make_console
from keep_agent.errors import DataError
from keep_agent.files import unpacking
from keep_agent.guard import guarded
from keep_agent.rollout.run_folder import AGAIN, TRACE
from keep_agent.rollout.trace import read_trace

KIND_BY_PREFIX = {"did": "executed skills", "task": "finished tasks"}  # by the prefix of a segment's id


@dataclass
class Kind:
    """Segments of one kind, over all steps of a run."""

    segments: int = 0  # distinct
    alive: int = 0  # summed over steps
    changes: int = 0  # of segments that already existed
    changed: set[tuple[str, str]] = field(default_factory=set)  # (episode, segment)

    @property
    def rate(self) -> float:
        """Changes per segment in 100 steps."""
        return 100 * self.changes / max(1, self.alive)


@dataclass
class Layers:
    """Rows and bytes by layer, summed over the steps at which a model ran."""

    steps: int = 0
    prompt: int = 0
    computed: Counter[int] = field(default_factory=Counter)
    loaded: Counter[int] = field(default_factory=Counter)

    def add(self, entry: Mapping[str, Any]) -> None:
        self.steps += 1
        self.prompt += len(entry["token_ids"])
        self.computed.update(dict(enumerate(entry["active_rows"])))
        for first, last, _, _, size in entry["loads"]:
            self.loaded.update(dict.fromkeys(range(first, last), size / (last - first)))


def read(entries: Iterable[Mapping[str, Any]], where: object = "the trace") -> tuple[dict[str, Kind], Layers]:
    """Read kinds of segments by name, and layers, from a trace. Raises DataError for an entry of another shape."""
    kinds: dict[str, Kind] = defaultdict(Kind)
    layers = Layers()
    alive: dict[str, str] = {}  # kind of each segment that exists
    categories: dict[str, str] = {}  # of facts
    for line, entry in enumerate(entries, 1):
        with unpacking(f"{where}:{line}", "no entry of a trace", AGAIN):
            if entry["event"] == "episode":
                alive, categories = {}, {}
            if entry["event"] != "step" or "token_ids" not in entry:
                continue
            categories |= {fact["id"]: fact["category"] for fact in entry["facts"]}
            for name, text in entry["extra"]["written"]:
                _write(kinds, alive, categories, (entry["episode"], name), text)
            for kind in alive.values():
                kinds[kind].alive += 1
            layers.add(entry)
    return dict(kinds), layers


def _write(
    kinds: dict[str, Kind], alive: dict[str, str], categories: Mapping[str, str], key: tuple[str, str], text: str | None
) -> None:
    _, name = key
    if text is None:
        alive.pop(name, None)
        return
    prefix_kind = KIND_BY_PREFIX.get(name.partition("_")[0])
    kind = prefix_kind or categories.get(name.split("/")[0], "others")
    if name in alive:
        kinds[kind].changes += 1
        kinds[kind].changed.add(key)
    else:
        kinds[kind].segments += 1
    alive[name] = kind


def kinds_table(kinds: Mapping[str, Kind]) -> Table:
    columns: Sequence[Column] = (
        ("kind", lambda item: item[0]),
        ("segments", lambda item: str(item[1].segments)),
        ("changed %", lambda item: percent(len(item[1].changed) / max(1, item[1].segments))),
        ("changes per segment in 100 steps", lambda item: number(item[1].rate, 2)),
    )
    return make_table("Changes of segments", sorted(kinds.items(), key=lambda item: -item[1].rate), columns)


def layers_table(layers: Layers) -> Table:
    columns: Sequence[Column] = (
        ("layer", str),
        ("rows computed", lambda layer: number(layers.computed[layer] / layers.steps, 1)),
        ("% of the prompt", lambda layer: percent(layers.computed[layer] / max(1, layers.prompt))),
        ("loaded KB", lambda layer: number(layers.loaded[layer] / layers.steps / 1e3, 1)),
    )
    return make_table("Rows computed and bytes loaded by layer, mean per step", sorted(layers.computed), columns)


def report(run: Path, plain: bool, console: Console) -> None:
    """Print both tables. Raises DataError for a run without a trace or without a model."""
    file = run / TRACE
    if not file.is_file():
        raise DataError(f"{run} has no {TRACE}; name a run folder that was written with eval.trace=true")
    kinds, layers = read(read_trace(file), file)
    if not layers.steps:
        raise DataError(f"{file} has no step of a planner with a model; name a run that has one")
    for table in (kinds_table(kinds), layers_table(layers)):
        show(table, plain, console)


def main() -> None:
    """Exit code 0: done; 2: bad input, one line on standard error."""
    p = argparse.ArgumentParser(
        prog="keep-eval-anatomy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("run", type=Path, help="a run folder with a trace")
    p.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    arguments = p.parse_args()
    sys.exit(guarded(lambda: report(arguments.run, arguments.markdown, make_console())))


if __name__ == "__main__":
    main()
