"""Runner of cells (combinations of settings): all methods run once at each step, so that noise affects all equally."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, cycle, groupby, islice
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from eval.latency.contenders import Contender, PlainForward, PlannerContender
from eval.latency.machine import MemoryPeak, RateMeter, Rates
from eval.latency.report.rows import Cell, CellResult, TimedRun
from eval.latency.scripts import Recordings, Script
from eval.latency.settings import Composer, plan_of
from eval.latency.workloads import make_workload
from keep_agent.config.examples import make_examples
from keep_agent.config.planner_factory import format_of, make_engine, make_tokenizer
from keep_agent.errors import KeepError
from memory.engine.base import Engine
from memory.segments.sentence_encoder import SentenceEncoder, make_encoder
from planners.prompts.formats import Format


class FixedLengthFormat:
    """Prompt format that repeats or cuts each segment's line to ``tokens`` tokens, newline included.

    A line is cut at its start, since its end is the part that changes. Lines that become equal share a block.
    """

    def __init__(self, format: Format, tokens: int) -> None:
        self._format, self._tokens = format, tokens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._format, name)

    def line(self, text: str) -> list[int]:
        """Return the ``tokens`` token ids of a segment; a bare newline is not changed."""
        *body, newline = self._format.line(text)
        room = self._tokens - 1 if body else 0
        return [*islice(cycle(body[-room:]), room), newline]


STEP_ERRORS = (KeepError, MemoryError, torch.OutOfMemoryError)  # errors that exclude a contender from its cell


@dataclass
class InterleavedTiming:
    """Contenders (timed methods) of a cell and their results. One that fails is excluded; the others continue."""

    contenders: Sequence[Contender]
    device: torch.device
    meter: RateMeter
    report: Callable[[int], None]  # called with the number of finished steps
    rates: list[Rates] = field(default_factory=list)
    steps: int = 0

    def __post_init__(self) -> None:
        self.runs = {contender.name: TimedRun(contender.name, contender.prompt) for contender in self.contenders}

    def warm_up(self, script: Script) -> None:
        """Run untimed steps, and measure their peak memory."""
        self._begin(script)
        for number, step in enumerate(script.steps):
            for contender in self._order(number):
                with self._excluding(contender):
                    peak, run = MemoryPeak(self.device), self.runs[contender.name]
                    contender.step(step)
                    growth = peak.growth()
                    if number == 0:
                        run.peak_cold = growth
                    elif growth is not None:
                        run.peak = max(run.peak or 0, growth)
            self._count_step()

    def run(self, scripts: Sequence[Script]) -> None:
        """Time all steps, and sample the machine's rates between them."""
        number = count()
        for script in scripts:
            self._begin(script)
            for step in script.steps:
                self.rates.append(self.meter.sample())
                for contender in self._order(next(number)):
                    with self._excluding(contender):
                        self.runs[contender.name].steps.append(contender.step(step))
                self._count_step()
        for contender in self._active():
            self.runs[contender.name].stored = contender.stored()

    def _begin(self, script: Script) -> None:
        for contender in self._active():
            with self._excluding(contender):
                contender.begin(script)

    def _count_step(self) -> None:
        self.steps += 1
        self.report(self.steps)

    def _order(self, number: int) -> Iterator[Contender]:
        """Yield active planners, rotated by one per step; the plain forward follows the one whose prompt it reads."""
        planners = [contender for contender in self._active() if not isinstance(contender, PlainForward)]
        plain = [contender for contender in self._active() if isinstance(contender, PlainForward)]
        first = number % max(1, len(planners))
        for contender in [*planners[first:], *planners[:first]]:
            yield contender
            yield from (forward for forward in plain if forward.follows(contender) and self._is_active(contender))

    def _active(self) -> list[Contender]:
        return [contender for contender in self.contenders if self._is_active(contender)]

    def _is_active(self, contender: Contender) -> bool:
        return not self.runs[contender.name].refusal

    @contextmanager
    def _excluding(self, contender: Contender) -> Iterator[None]:
        """Exclude the contender, and the plain forward that reads its prompt, if the code in the context fails."""
        try:
            yield
        except STEP_ERRORS as error:
            for excluded in self._active():
                if excluded is contender or (isinstance(excluded, PlainForward) and excluded.follows(contender)):
                    self.runs[excluded.name].refusal = one_line(error)
                    self.runs[excluded.name].steps.clear()


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


REFERENCE = "full_recompute"  # the plain forward reads this contender's prompt, if it runs
IndexedCell = tuple[int, Cell]
Report = Callable[..., None]  # called with the current phase or cell, and the number of its finished steps


def run_cells(
    config: DictConfig, composer: Composer, recordings: Recordings, cells: Sequence[IndexedCell], report: Report
) -> Iterator[CellResult]:
    """Yield the results of ``cells`` in their order."""
    for _, group in groupby(cells, key=lambda pair: (pair[1].model, pair[1].device, pair[1].dtype)):
        todo = list(group)
        report(f"loading {todo[0][1].model}")
        try:
            engine = make_engine(next(iter(composer.configs(todo[0][1]).values())))
        except STEP_ERRORS as error:
            yield from (CellResult(index, cell.id, cell, refusal=one_line(error)) for index, cell in todo)
            continue
        with closing(engine):
            runner = CellRunner(config, composer, engine, recordings)
            for index, cell in todo:
                yield runner.run(index, cell, report)


class CellRunner:
    """Runner of the cells of one engine."""

    def __init__(self, config: DictConfig, composer: Composer, engine: Engine, recordings: Recordings) -> None:
        self._config, self._composer, self._engine, self._recordings = config, composer, engine, recordings
        self._device = engine.device
        self._meter = RateMeter(self._device, engine.info.dtype, composer.setting.engine.link_gigabytes)

    def run(self, index: int, cell: Cell, report: Report) -> CellResult:
        start, configs = time.perf_counter(), self._composer.configs(cell)
        setting = next(iter(configs.values()))
        plan = plan_of(self._config, cell, setting.memory.grouping.window)
        scripts = make_workload(plan, self._recordings)
        contenders, refusals = self._contenders(configs, cell)
        timing = InterleavedTiming(contenders, self._device, self._meter, lambda step: report(cell.id, step))
        if self._config.latency.warmup:
            timing.warm_up(scripts[0].first_steps(self._config.latency.warmup))
        timing.run(scripts)
        names = [*configs, *(contender.name for contender in contenders if isinstance(contender, PlainForward))]
        runs = {**timing.runs, **refusals}
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        seconds = time.perf_counter() - start
        return CellResult(index, cell.id, cell, [runs[name] for name in names], timing.rates, seconds=seconds)

    def _contenders(self, configs: Mapping[str, DictConfig], cell: Cell) -> tuple[list[Contender], dict[str, TimedRun]]:
        """Make the contenders; return those that can run, and the refusals of the others by name."""
        setting = next(iter(configs.values()))
        tokenizer = make_tokenizer(setting.model, self._engine.model)
        examples = make_examples(setting.env, setting.prompt.examples, setting.eval.seed)
        prompt = OmegaConf.merge(setting.prompt, {"goal": False})  # a workload's tasks have no goals
        inner = format_of(prompt, self._engine.model, tokenizer, examples)
        prompt_format, planners = FixedLengthFormat(inner, cell.segment_tokens), list[PlannerContender]()
        refusals: dict[str, TimedRun] = {}
        for name, config in configs.items():
            try:
                planners.append(PlannerContender(name, config, self._engine, prompt_format, self._encoder))
            except KeepError as error:
                refusals[name] = TimedRun(name, config.memory.layout, refusal=str(error))
        if not (self._composer.plain and planners):
            return [*planners], refusals
        # the plain forward reads full recomputation's prompt, else the first prompt rebuilt at every step, else any
        reference = min(planners, key=lambda planner: (planner.name != REFERENCE, planner.prompt != "memory"))
        return [*planners, PlainForward(self._engine, reference)], refusals

    @cached_property
    def _encoder(self) -> SentenceEncoder:
        """Return the encoder that all methods share, loaded and without a cache."""
        encoder = make_encoder(self._composer.setting.prompt.encoder).inner
        encoder.encode(["ready\n"])
        return encoder
