"""The cost of forgetting: ``python -m eval.retention [KEY=VALUE ...]``.

The scripted expert plays task streams; before every step the full cache and each method decide on the same transcript,
the method with a budget of rows (or in fewer bits: semantic). The table says how often it takes the full cache's next
skill, and the expert's, once the transcript has so many tokens (--history), and what it kept and read. *Far* are steps
whose next skill names something that was mentioned last more than a budget of tokens ago: there memory decides.
With --out FILE.jsonl every episode is written down, and a run that was stopped goes on.

KEY=VALUE are overrides of `python -m eval.alfred`; a method's own stand behind it, as in
``h2o_moved:h2o+memory.construction.survivors=move``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from eval.common.accepted_overrides import check_overrides
from eval.common.hydra_command import check_target
from eval.common.intervals import share_interval
from eval.common.resume import use_threads
from eval.common.tables import bounds, number, percent, show
from eval.common.variants import check_methods, compose_variants, names
from keep_agent.config.model_override import expand_model
from keep_agent.console import make_console
from keep_agent.guard import guarded

if TYPE_CHECKING:
    from eval.retention.forgetting import Step

RULER = "full_cache"
BUDGET = "memory.retention.budget"
METHODS = ("streaming", "h2o", "snapkv", "intentkv_rule", "intentkv")
QUALITY = ("steps", "same skill %", "95 % interval", "far steps", "far: same %", "expert's %", "KL, nats")
COST = ("prefix hits", "peak request", "peak live", "raw reads", "live reads", "ms p50", "wall s")
SETTING = (  # streams as long as the model has positions
    "model=planner-tiny-long",
    "env.skills=grounded",
    "env.observability=partial",
    "env.stream=16",
    "prompt.style=linked",
)
READ = ("env", "memory", "model", "planner", "prompt", "eval.episodes", "eval.seed", "eval.threads")


@dataclass(frozen=True, slots=True)
class Row:
    """One method over all episodes; times in ms."""

    method: str
    steps: int  # with a transcript of at least the history asked for
    same_skill: float | None
    same_skill_interval: tuple[float, float] | None
    right: float | None
    far_steps: int
    far_same: float | None
    kl: float | None
    prefix_hit_rate: float
    peak_request_tokens: int
    peak_live_tokens: int
    raw_reads: float  # per step
    live_reads: float
    ms_p50: float
    seconds: float


def summarise(
    method: str, episodes: Sequence[Sequence[Step]], leader: Sequence[Sequence[Step]], history: int, budget: int
) -> Row:
    """Steps count for agreement where the ``leader``'s transcript is long enough."""
    steps = [step for episode in episodes for step in episode]
    late = {
        i: [own for own, led in zip(*pair, strict=True) if led.prompt >= history]
        for i, pair in enumerate(zip(episodes, leader, strict=True))
    }
    same = {i: [float(s.same_skill) for s in found] for i, found in late.items() if found}
    values = [value for found in same.values() for value in found]
    counted = [step for found in late.values() for step in found]
    far = [step.same_skill for step in counted if step.away > budget]
    return Row(
        method,
        len(values),
        float(np.mean(values)) if values else None,
        share_interval(same),
        float(np.mean([s.right for s in counted])) if counted else None,
        len(far),
        float(np.mean(far)) if far else None,
        float(np.mean([s.kl for s in counted])) if counted else None,
        sum(s.prefix for s in steps) / sum(s.prompt for s in steps),
        max(s.prompt for s in steps),
        max(s.live for s in steps),
        float(np.mean([s.raw_reads for s in steps])),
        float(np.mean([s.live_reads for s in steps])),
        float(np.median([s.ms for s in steps])),
        sum(s.ms for s in steps) / 1e3,
    )


def _table(title: str, headings: Sequence[str]) -> Table:
    table = Table(title=title)
    table.add_column("method", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def tables_of(rows: Sequence[Row], history: int, budget: int) -> tuple[Table, Table]:
    """How well each method decides, and what it kept and read."""
    quality = _table(f"decisions behind transcripts of {history} tokens or more, {budget} of them kept", QUALITY)
    cost = _table("rows kept and read, and time, over all steps", COST)
    for row in rows:
        same = percent(row.same_skill), bounds(row.same_skill_interval, 100, 1)
        far = str(row.far_steps), percent(row.far_same)
        quality.add_row(row.method, str(row.steps), *same, *far, percent(row.right), number(row.kl))
        sizes = (row.peak_request_tokens, row.peak_live_tokens, row.raw_reads, row.live_reads)
        times = number(row.ms_p50, 1), number(row.seconds, 1)
        cost.add_row(row.method, number(row.prefix_hit_rate, 2), *(number(size, 0) for size in sizes), *times)
    return quality, cost


def variants(methods: Sequence[str], budget: int, overrides: Sequence[str]) -> list[str]:
    """The methods as `compose_variants` reads them, each that forgets with the budget, unless it names its own."""
    found = [RULER]
    for method, config in zip(methods, compose_variants(methods, overrides).values(), strict=True):
        label, _, what = method.rpartition(":")
        forgets = "budget" in config.memory.retention and BUDGET not in what
        found.append(f"{label or method}:{what}" + (f"+{BUDGET}={budget}" if forgets else ""))
    return found


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--methods", default=",".join(METHODS), help=f"beside the full cache (default {','.join(METHODS)})")
    p.add_argument("--budget", type=int, default=256, help="rows that may stay after a turn (default 256)")
    p.add_argument("--history", type=int, default=2048, help="tokens from which on steps count (default 2048)")
    p.add_argument("--out", type=Path, help="JSONL file for every episode; a stopped run goes on with it")
    p.add_argument("--markdown", action="store_true", help="print the table in Markdown")
    p.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    return p


def report(arguments: Sequence[str]) -> None:
    args = parser().parse_intermixed_args(arguments)
    if args.out is not None:
        check_target(args.out)
    overrides = [*SETTING, "eval.episodes=20", *expand_model(args.overrides)]
    configs = compose_variants(variants(names(args.methods), args.budget, overrides), overrides)
    check_overrides(args.overrides, READ, {"planner": "--methods", "memory": "--methods"})
    check_methods(configs)
    use_threads(configs[RULER])
    from eval.retention.forgetting import measure  # here: it loads torch, and what is mistyped is refused before

    episodes = measure(args.out, configs)
    rows = [summarise(name, found, episodes[RULER], args.history, args.budget) for name, found in episodes.items()]
    console = make_console()
    for table in tables_of(rows, args.history, args.budget):
        show(table, args.markdown, console)


def main() -> None:
    sys.exit(guarded(lambda: report(sys.argv[1:])))


if __name__ == "__main__":
    main()
