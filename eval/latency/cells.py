"""Runner of a run's cells, one after another; cells with the same model share an engine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from itertools import groupby
from typing import Protocol

import torch
from omegaconf import DictConfig

from eval.latency.contenders import Contender, PlainForward, PlannerContender
from eval.latency.episode_scripts import Recordings
from eval.latency.fixed_length_format import FixedLengthFormat
from eval.latency.interleaved_timing import STEP_ERRORS, InterleavedTiming, one_line
from eval.latency.rates import RateMeter
from eval.latency.report.rows import Cell, CellResult, Track
from eval.latency.settings import Composer, plan_of
from eval.latency.workloads import make_workload
from keep_agent.config.examples import make_examples
from keep_agent.config.planner_factory import make_engine, make_tokenizer
from keep_agent.errors import KeepError
from memory.engine.base import Engine
from memory.segments.sentence_encoder import SentenceEncoder, make_encoder
from planners.prompts.formats import Format, make_format

REFERENCE = "full_recompute"  # the plain forward reads its prompt
IndexedCell = tuple[int, Cell]


class ReportProgress(Protocol):
    def __call__(self, text: str, step: int = 0, /) -> None: ...


def run_cells(
    config: DictConfig, composer: Composer, recordings: Recordings, cells: Sequence[IndexedCell], report: ReportProgress
) -> Iterator[CellResult]:
    """Yield the results of ``cells`` in their order; ``report`` is called with the current work and its step."""
    for _, group in groupby(cells, key=lambda pair: (pair[1].model, pair[1].device, pair[1].dtype)):
        todo = list(group)
        report(f"loading {todo[0][1].model}")
        try:
            engine = make_engine(next(iter(composer.of(todo[0][1]).values())))
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

    def run(self, index: int, cell: Cell, report: ReportProgress) -> CellResult:
        start, configs = time.perf_counter(), self._composer.of(cell)
        setting = next(iter(configs.values()))
        plan = plan_of(self._config, cell, setting.memory.grouping.window)
        scripts = make_workload(plan, self._recordings)
        contenders, refusals = self._contenders(configs, cell)
        timing = InterleavedTiming(contenders, self._device, self._meter, lambda step: report(cell.id, step))
        if self._config.latency.warmup:
            timing.warm_up(scripts[0].first(self._config.latency.warmup))
        timing.run(scripts)
        names = [*configs, *(contender.name for contender in contenders if isinstance(contender, PlainForward))]
        tracks = {**timing.tracks, **refusals}
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        seconds = time.perf_counter() - start
        return CellResult(index, cell.id, cell, [tracks[name] for name in names], timing.rates, seconds=seconds)

    def _contenders(self, configs: Mapping[str, DictConfig], cell: Cell) -> tuple[list[Contender], dict[str, Track]]:
        """Make the contenders; return those that can be made, and tracks with the refusals of the others."""
        setting = next(iter(configs.values()))
        prompt_format, planners = self._format(setting, cell), list[PlannerContender]()
        refusals: dict[str, Track] = {}
        for name, config in configs.items():
            try:
                planners.append(PlannerContender(name, config, self._engine, prompt_format, self._encoder))
            except KeepError as error:
                refusals[name] = Track(name, config.memory.layout, refusal=str(error))
        return [*planners, *self._plain(planners)], refusals

    def _plain(self, planners: Sequence[PlannerContender]) -> list[PlainForward]:
        """Make the plain forward of full recomputation's prompt, or else of the first rebuilt prompt."""
        if not (self._composer.plain and planners):
            return []
        preference = sorted(planners, key=lambda planner: (planner.name != REFERENCE, planner.prompt != "memory"))
        return [PlainForward(self._engine, preference[0])]

    def _format(self, setting: DictConfig, cell: Cell) -> Format:
        tokenizer = make_tokenizer(setting.model, self._engine.model)
        examples = make_examples(setting.env, setting.prompt.examples, setting.eval.seed)
        inner = make_format(setting.prompt.format, tokenizer, examples, setting.prompt.start)
        return FixedLengthFormat(inner, cell.segment_tokens)

    @cached_property
    def _encoder(self) -> SentenceEncoder:
        """The encoder of all methods, loaded and without a cache."""
        encoder = make_encoder(self._composer.setting.prompt.encoder).inner
        encoder.encode(["ready\n"])
        return encoder
