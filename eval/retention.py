"""What forgetting costs: ``python -m eval.retention [KEY=VALUE ...]``.

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
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from omegaconf import OmegaConf
from rich.progress import Progress
from rich.table import Table

from eval.cli import check_target
from eval.deviation import Shadow, divergence, make_planners, play
from eval.intervals import share_interval
from eval.lines import begin_lines
from eval.resume import use_threads
from eval.tables import bounds, number, percent, show
from eval.variants import check_methods, compose_variants, names
from keep_agent.assemble import expert_oracle
from keep_agent.brain import make_model, make_tokenizer
from keep_agent.console import make_console
from keep_agent.guard import guarded
from keep_agent.overrides import expand_model
from memory.engine.engine import Engine
from planners.prompt import named

if TYPE_CHECKING:
    import torch
    from omegaconf import DictConfig

    from eval.deviation import Choice
    from memory.disk.lines import LineFile
    from memory.report import Prefill

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


@dataclass(frozen=True, slots=True)
class Step:
    """One decision of one method."""

    prompt: int  # tokens of the transcript, dropped ones included
    same_skill: bool  # as the full cache's
    right: bool  # as the expert's
    away: int  # tokens since all that the expert's skill names had been mentioned
    kl: float  # nats, KL(full cache || method) of the next token
    live: int  # rows after the turn
    prefix: int  # rows that did not have to be computed
    raw_reads: int
    live_reads: int
    ms: float  # to the logits, and to what was forgotten after them


class Recorder:
    """The steps of one method in the episode that is played."""

    def __init__(self, encode: Callable[[str], Sequence[int]]) -> None:
        self._encode = encode
        self.steps: list[tuple[Prefill, Step]] = []

    def add(self, prefill: Prefill, reference: torch.Tensor, choice: Choice) -> None:
        counts = prefill.counts
        kl, ms = divergence(prefill, reference), prefill.timings.total + prefill.after_ms
        told, wanted = prefill.layout.token_ids.tolist(), (self._encode(name) for name in named(choice.executed))
        away = max((distance(told, list(ids)) for ids in wanted), default=0)
        choices = choice.same, choice.skill == choice.executed, away
        sizes = counts.live_tokens, counts.prefix_tokens, prefill.reads.raw, prefill.reads.live
        self.steps.append((prefill, Step(counts.prompt_tokens, *choices, kl, *sizes, ms)))

    def take(self) -> list[Step]:
        """The episode's steps; nothing more is read behind their prompts."""
        taken, self.steps = self.steps, []
        return [Step(**{**asdict(s), "raw_reads": p.reads.raw, "live_reads": p.reads.live}) for p, s in taken]


def distance(told: Sequence[int], ids: Sequence[int]) -> int:
    """How many tokens stand behind the last ``ids`` in a text; all of it, where they are not there."""
    last = len(told) - len(ids)
    return next((last - i for i in range(last, -1, -1) if told[i : i + len(ids)] == ids), len(told))


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


def measure(args: argparse.Namespace, configs: Mapping[str, DictConfig]) -> dict[str, list[list[Step]]]:
    """Steps per method and episode, those of an earlier run included."""
    setting = configs[RULER]
    described = {name: OmegaConf.to_container(config, resolve=True) for name, config in configs.items()}
    out, done = (None, []) if args.out is None else begin_lines(args.out, described)
    episodes: dict[str, list[list[Step]]] = defaultdict(list)
    for line in done:
        for name, rows in line.items():
            episodes[name].append([Step(*row) for row in rows])
    with Engine(make_model(setting.model, setting.eval.seed)) as engine, Progress(console=make_console()) as bar:
        tokenizer = make_tokenizer(setting.model, engine.model)
        planners = make_planners(engine, tokenizer, configs)
        recorders = {name: Recorder(partial(tokenizer.encode, add_special_tokens=False)) for name in configs}
        task = bar.add_task("episodes", total=setting.eval.episodes, completed=len(done))
        shadow = Shadow(engine, planners, recorders, expert_oracle(setting.env), common=True)
        for _ in play(shadow, setting, first=len(done)):
            if any(recorder.steps for recorder in recorders.values()):
                _close(out, recorders, episodes)
                bar.advance(task)
        _close(out, recorders, episodes)
        bar.advance(task)
    return episodes


def _close(out: LineFile | None, recorders: Mapping[str, Recorder], episodes: dict[str, list[list[Step]]]) -> None:
    """An episode is over: keep its steps."""
    taken = {name: recorder.take() for name, recorder in recorders.items()}
    if not all(taken.values()):
        return
    for name, steps in taken.items():
        episodes[name].append(steps)
    if out is not None:
        out.append([{name: [list(asdict(step).values()) for step in steps] for name, steps in taken.items()}])


def report(arguments: Sequence[str]) -> None:
    args = parser().parse_intermixed_args(arguments)
    if args.out is not None:
        check_target(args.out)
    overrides = [*SETTING, "eval.episodes=20", *expand_model(args.overrides)]
    configs = compose_variants(variants(names(args.methods), args.budget, overrides), overrides)
    check_methods(configs)
    use_threads(configs[RULER])
    episodes = measure(args, configs)
    rows = [summarise(name, found, episodes[RULER], args.history, args.budget) for name, found in episodes.items()]
    console = make_console()
    for table in tables_of(rows, args.history, args.budget):
        show(table, args.markdown, console)


def main() -> None:
    sys.exit(guarded(lambda: report(sys.argv[1:])))


if __name__ == "__main__":
    main()
