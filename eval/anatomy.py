"""Anatomy of a run's memory: ``python -m eval.anatomy RUN [--markdown]``.

The first table shows how often segments (texts in the memory) of each kind change, as in KEEP's Figure 5 (arXiv
2602.23592). The second shows the computed rows (prompt tokens) and loaded bytes of each layer, as in KEEP's Figure 7.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from eval.common.options import command_parser
from eval.common.tables import Column, make_table, number, percent, show
from keep_agent.console import make_console
from keep_agent.errors import DataError
from keep_agent.files import unpacking
from keep_agent.guard import guarded
from keep_agent.rollout.run_folder import RESTORE, TRACE
from keep_agent.rollout.trace import read_trace

KIND_BY_PREFIX = {"did": "executed skills", "task": "finished tasks"}  # by the prefix of a segment's id


@dataclass
class KindChanges:
    """Counts of the segments of one kind (category of fact, skills or tasks), over all steps of a run."""

    segments: int = 0  # created segments; a segment that is removed and written again counts twice
    existing_steps: int = 0  # number of existing segments, summed over steps
    changes: int = 0  # rewrites of existing segments
    changed_ids: set[tuple[str, str]] = field(default_factory=set)  # (episode, id) of rewritten segments

    @property
    def rate(self) -> float:
        """Mean number of changes of one segment in 100 steps."""
        return 100 * self.changes / max(1, self.existing_steps)


@dataclass
class Layers:
    """Rows computed and bytes loaded by layer, summed over the steps at which a model ran."""

    steps: int = 0
    prompt: int = 0  # prompt tokens
    computed: Counter[int] = field(default_factory=Counter)  # rows by layer
    loaded: Counter[int] = field(default_factory=Counter)  # bytes by layer

    def add(self, entry: Mapping[str, Any]) -> None:
        self.steps += 1
        self.prompt += len(entry["token_ids"])
        self.computed.update(dict(enumerate(entry["active_rows"])))
        for first, last, _, _, size in entry["loads"]:
            self.loaded.update(dict.fromkeys(range(first, last), size / (last - first)))


def totals(entries: Iterable[Mapping[str, Any]], where: object = "the trace") -> tuple[dict[str, KindChanges], Layers]:
    """Count each segment kind's changes, and each layer's computed rows and loaded bytes. ``where`` is for errors."""
    kinds, layers = defaultdict[str, KindChanges](KindChanges), Layers()
    kind_by_id: dict[str, str] = {}  # kind of each existing segment, by the segment's id
    categories: dict[str, str] = {}  # category of each fact, by the fact's id
    for line, entry in enumerate(entries, 1):
        with unpacking(f"{where}:{line}", "not an entry of a trace", RESTORE):
            if entry["event"] == "episode":
                kind_by_id, categories = {}, {}
            if entry["event"] != "step" or "token_ids" not in entry:
                continue
            categories |= {fact["id"]: fact["category"] for fact in entry["facts"]}
            for segment_id, text in entry["extra"]["written"]:
                exists = kind_by_id.pop(segment_id, None) is not None
                if text is None:
                    continue
                prefix_kind = KIND_BY_PREFIX.get(segment_id.partition("_")[0])
                kind_by_id[segment_id] = prefix_kind or categories.get(segment_id.split("/")[0], "others")
                kind = kinds[kind_by_id[segment_id]]
                if exists:
                    kind.changes += 1
                    kind.changed_ids.add((entry["episode"], segment_id))
                else:
                    kind.segments += 1
            for name in kind_by_id.values():
                kinds[name].existing_steps += 1
            layers.add(entry)
    return dict(kinds), layers


KIND_COLUMNS: tuple[Column, ...] = (
    ("kind", lambda item: item[0]),
    ("segments", lambda item: str(item[1].segments)),
    ("changed %", lambda item: percent(len(item[1].changed_ids) / max(1, item[1].segments))),
    ("changes per segment in 100 steps", lambda item: number(item[1].rate, 2)),
)


def report(run: Path, plain: bool, console: Console) -> None:
    """Print both tables (``plain``: in Markdown). Raises DataError for a missing trace, or if no step ran a model."""
    file = run / TRACE
    if not file.is_file():
        raise DataError(f"{run} has no {TRACE}; name a run folder that was written with eval.trace=true")
    kinds, layers = totals(read_trace(file), file)
    if not layers.steps:
        raise DataError(f"{file} has no step of a planner with a model; name a run whose planner has a model")
    by_layer: tuple[Column, ...] = (
        ("layer", str),
        ("rows computed", lambda layer: number(layers.computed[layer] / layers.steps, 1)),
        ("% of the prompt", lambda layer: percent(layers.computed[layer] / max(1, layers.prompt))),
        ("loaded KB", lambda layer: number(layers.loaded[layer] / layers.steps / 1e3, 1)),
    )
    by_rate = sorted(kinds.items(), key=lambda item: -item[1].rate)
    show(make_table("Changes of segments", by_rate, KIND_COLUMNS), plain, console)
    title = "Rows computed and bytes loaded by layer, mean per step"
    show(make_table(title, sorted(layers.computed), by_layer), plain, console)


def main() -> None:
    p = command_parser(__doc__, "keep-eval-anatomy")
    p.add_argument("run", type=Path, help="a run folder with a trace")
    p.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    arguments = p.parse_args()
    sys.exit(guarded(lambda: report(arguments.run, arguments.markdown, make_console())))


if __name__ == "__main__":
    main()
