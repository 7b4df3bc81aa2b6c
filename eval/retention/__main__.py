"""Cost of eviction: ``python -m eval.retention [KEY=VALUE ...]``.

The scripted expert plays task streams. Before every step the full cache and each method choose a skill from the same
transcript. After a turn each method keeps at most --budget rows (`semantic` keeps all rows in fewer bits). The tables
show how often a method agrees with the full cache and with the expert, once the transcript has --history tokens. They
also show how many rows a method keeps and reads. At *far* steps the expert's skill names something last mentioned more
than --budget tokens ago, so that the decision depends on memory. --out FILE.jsonl saves every episode; the same command
resumes a stopped run. KEY=VALUE are overrides of `python -m eval.alfred`. In --methods, LABEL:NAME+KEY=VALUE
overrides settings of one method, as in ``h2o_moved:h2o+memory.construction.survivors=move``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from eval.common.hydra_command import check_target
from eval.common.intervals import share_interval
from eval.common.options import command_parser
from eval.common.resume import use_threads
from eval.common.tables import bounds, number, percent, show, table_of
from eval.common.variants import check_methods, check_overrides, compose_variants, name_list
from keep_agent.config.model_names import expand_model
from keep_agent.console import make_console
from keep_agent.guard import guarded

if TYPE_CHECKING:
    from eval.retention.forgetting import StepRow

BASELINE = "full_cache"
BUDGET = "memory.retention.budget"
METHODS = ("streaming", "h2o", "snapkv", "intentkv_rule", "intentkv")
QUALITY = ("steps", "same skill %", "95 % interval", "far steps", "far: same %", "expert's %", "KL, nats")
COST = ("prefix hits", "peak request", "peak live", "raw reads", "live reads", "ms p50", "wall s")
SETTING = (  # task streams that fill the model's positions
    "model=planner-tiny-long", "env.skills=grounded", "env.observability=partial", "env.stream=16",
    "prompt.style=linked",
)  # fmt: skip
KEYS = ("env", "memory", "model", "planner", "prompt", "eval.episodes", "eval.seed", "eval.threads")


@dataclass(frozen=True, slots=True)
class Row:
    """Results of one method over all episodes."""

    method: str
    steps: int  # steps whose transcript has at least --history tokens
    same_skill: float | None  # share of these steps with the full cache's skill
    same_skill_interval: tuple[float, float] | None
    same_as_expert: float | None  # share of these steps with the expert's skill
    far_steps: int  # how many of these steps are far
    far_same_skill: float | None  # share of the far steps with the full cache's skill
    kl: float | None  # mean of `StepRow.kl` over these steps
    prefix_hit_rate: float  # this and the following fields: over all steps
    peak_request_tokens: int
    peak_live_tokens: int
    raw_reads: float  # mean per step
    live_reads: float  # mean per step
    ms_p50: float  # median of `StepRow.ms`
    seconds: float  # sum over the steps


def summarise(
    method: str, episodes: Sequence[Sequence[StepRow]], leader: Sequence[Sequence[StepRow]], history: int, budget: int
) -> Row:
    """Summarise a method; agreement counts steps where ``leader``, the full cache, has ``history`` tokens or more."""

    def mean(values: Sequence[float]) -> float | None:
        return float(np.mean(values)) if values else None

    steps = [step for episode in episodes for step in episode]
    late_by_episode = [
        [step for step, leading in zip(*pair, strict=True) if leading.prompt_tokens >= history]
        for pair in zip(episodes, leader, strict=True)
    ]
    late = [step for steps in late_by_episode for step in steps]
    same = {i: [float(step.same_skill) for step in steps] for i, steps in enumerate(late_by_episode)}
    far = [step.same_skill for step in late if step.mention_distance > budget]
    return Row(
        method, len(late), mean([step.same_skill for step in late]), share_interval(same),
        mean([step.same_as_expert for step in late]), len(far), mean(far), mean([step.kl for step in late]),
        sum(s.prefix_rows for s in steps) / sum(s.prompt_tokens for s in steps),
        max(s.prompt_tokens for s in steps), max(s.live_rows for s in steps),
        float(np.mean([s.raw_reads for s in steps])), float(np.mean([s.live_reads for s in steps])),
        float(np.median([s.ms for s in steps])), sum(s.ms for s in steps) / 1e3,
    )  # fmt: skip


def tables_of(rows: Sequence[Row], history: int, budget: int) -> tuple[Table, Table]:
    """Return a table of agreement and a table of cost."""
    quality, cost = [], []
    for row in rows:
        same = percent(row.same_skill), bounds(row.same_skill_interval, 100, 1)
        far = str(row.far_steps), percent(row.far_same_skill)
        quality.append([row.method, str(row.steps), *same, *far, percent(row.same_as_expert), number(row.kl)])
        sizes = (row.peak_request_tokens, row.peak_live_tokens, row.raw_reads, row.live_reads)
        times = number(row.ms_p50, 1), number(row.seconds, 1)
        cost.append([row.method, number(row.prefix_hit_rate, 2), *(number(size, 0) for size in sizes), *times])
    title = f"decisions after transcripts of {history} tokens or more, {budget} rows kept"
    costs = table_of("rows kept and read, and time, over all steps", ["method"], COST, cost)
    return table_of(title, ["method"], QUALITY, quality), costs


def variants(methods: Sequence[str], budget: int, overrides: Sequence[str]) -> list[str]:
    """Return the methods in the format of `compose_variants`; add the budget to eviction methods that do not set it."""
    texts = [BASELINE]
    for method, config in zip(methods, compose_variants(methods, overrides).values(), strict=True):
        label, _, base = method.rpartition(":")
        evicts = "budget" in config.memory.retention and BUDGET not in base
        texts.append(f"{label or method}:{base}" + (f"+{BUDGET}={budget}" if evicts else ""))
    return texts


def report(arguments: Sequence[str]) -> None:
    p, methods = command_parser(__doc__), ",".join(METHODS)
    add = p.add_argument
    add("--methods", default=methods, help=f"methods besides full_cache (default {methods})")
    add("--budget", type=int, default=256, help="rows kept after a turn (default 256)")
    add("--history", type=int, default=2048, help="minimum transcript of a counted step, in tokens (default 2048)")
    add("--out", type=Path, help="JSONL file of episodes; the same command resumes a stopped run")
    add("--markdown", action="store_true", help="print the tables in Markdown")
    add("overrides", nargs="*", metavar="KEY=VALUE")
    args = p.parse_intermixed_args(arguments)
    if args.out is not None:
        check_target(args.out)
    overrides = [*SETTING, "eval.episodes=20", *expand_model(args.overrides)]
    configs = compose_variants(variants(name_list(args.methods), args.budget, overrides), overrides)
    check_overrides(args.overrides, KEYS, {"planner": "--methods", "memory": "--methods"})
    check_methods(configs)
    use_threads(configs[BASELINE])
    from eval.retention.forgetting import measure  # lazy: it loads torch; wrong options are reported before

    episodes = measure(args.out, configs)
    rows = [summarise(name, steps, episodes[BASELINE], args.history, args.budget) for name, steps in episodes.items()]
    console = make_console()
    for table in tables_of(rows, args.history, args.budget):
        show(table, args.markdown, console)


def main() -> None:
    sys.exit(guarded(lambda: report(sys.argv[1:])))


if __name__ == "__main__":
    main()
