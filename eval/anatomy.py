"""Anatomy of a run's memory, changes and loads: ``python -m eval.anatomy RUN [--markdown]``.

Two tables from the trace: how often segments change, by kind (the shape of KEEP's Figure 5, arXiv 2602.23592), and what
each layer computes and loads (its Figure 7).
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from eval.common.tables import number, percent, show
from keep_agent.console import make_console
from keep_agent.errors import DataError
from keep_agent.files import unpacking
from keep_agent.guard import guarded
from keep_agent.rollout.run_folder import AGAIN, TRACE
from keep_agent.rollout.trace import read_trace

KIND_BY_PREFIX = {"did": "what was done", "task": "finished tasks"}  # by what the id of a segment begins with


@dataclass
class Kind:
    """Segments of one kind, over all steps of a run."""

    segments: int = 0  # that ever were
    alive: int = 0  # summed over steps
    changes: int = 0  # of segments that were there
    changed: set[tuple[str, str]] = field(default_factory=set)  # (episode, segment)

    @property
    def rate(self) -> float:
        """Changes of a segment in 100 steps."""
        return 100 * self.changes / max(1, self.alive)


@dataclass
class Layers:
    """Rows and bytes by layer, summed over the steps at which a model was asked."""

    steps: int = 0
    prompt: int = 0
    computed: Counter[int] = field(default_factory=Counter)
    loaded: Counter[int] = field(default_factory=Counter)

    def add(self, entry: Mapping[str, Any]) -> None:
        self.steps += 1
        self.prompt += len(entry["token_ids"])
        self.computed.update(dict(enumerate(entry["active_rows"])))
        for first, behind, _, _, size in entry["loads"]:
            self.loaded.update(dict.fromkeys(range(first, behind), size / (behind - first)))


def read(entries: Iterable[Mapping[str, Any]], where: object = "the trace") -> tuple[dict[str, Kind], Layers]:
    """Kinds of segments by name, and layers, of one trace. Raises DataError for what is no entry of one."""
    kinds: dict[str, Kind] = defaultdict(Kind)
    layers = Layers()
    alive: dict[str, str] = {}  # the kind of each segment that is there
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
    own = KIND_BY_PREFIX.get(name.partition("_")[0])
    kind = own or categories.get(name.split("/")[0], "others")
    if name in alive:
        kinds[kind].changes += 1
        kinds[kind].changed.add(key)
    else:
        kinds[kind].segments += 1
    alive[name] = kind


def kinds_table(kinds: Mapping[str, Kind]) -> Table:
    table = Table(title="How often segments change")
    table.add_column("segments")
    for heading in ("there were", "changed at all %", "changes of one in 100 steps"):
        table.add_column(heading, justify="right")
    for name, kind in sorted(kinds.items(), key=lambda pair: -pair[1].rate):
        share = len(kind.changed) / max(1, kind.segments)
        table.add_row(name, str(kind.segments), percent(share), number(kind.rate, 2))
    return table


def layers_table(layers: Layers) -> Table:
    table = Table(title="What a layer computes and loads, mean of a step")
    for heading in ("layer", "rows computed", "of the prompt %", "loaded KB"):
        table.add_column(heading, justify="right")
    for layer in sorted(layers.computed):
        rows, loaded = layers.computed[layer], layers.loaded[layer]
        table.add_row(
            str(layer),
            number(rows / layers.steps, 1),
            percent(rows / max(1, layers.prompt)),
            number(loaded / layers.steps / 1e3, 1),
        )
    return table


def report(run: Path, plain: bool, console: Console) -> None:
    """Raises DataError for a run without a trace, or without steps of a model."""
    file = run / TRACE
    if not file.is_file():
        raise DataError(f"{run} has no {TRACE}; name a run folder that was made with eval.trace=true")
    kinds, layers = read(read_trace(file), file)
    if not layers.steps:
        raise DataError(f"{file} has no step of a planner with a model; name the run of one")
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
