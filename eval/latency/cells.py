"""The cells of a run, one after another; those that share a model share its engine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from typing import Protocol

import torch
from omegaconf import DictConfig

from eval.latency.contenders import Contender, PlainForward, PlannerContender
from eval.latency.episode_scripts import Recordings
from eval.latency.fixed_length_format import FixedLengthFormat
from eval.latency.race import STEP_ERRORS, InterleavedTiming, one_line
from eval.latency.rates import RateMeter
from eval.latency.report.rows import Cell, CellResult, Track
from eval.latency.settings import Composer, plan_of
from eval.latency.workloads import make_workload
from keep_agent.config.examples import make_examples
from keep_agent.config.planner_factory import make_engine, make_tokenizer
from keep_agent.errors import KeepError
from memory.engine.transformers.engine import Engine
from memory.segments.sentence_encoder import SentenceEncoder, make_encoder
from planners.prompts.formats import Format, make_format

REFERENCE = "full_recompute"  # whose prompt the plain forward reads
IndexedCell = tuple[int, Cell]


class ReportProgress(Protocol):
    def __call__(self, what: str, lap: int = 0, /) -> None: ...


def run_cells(
    config: DictConfig, composer: Composer, recordings: Recordings, cells: Sequence[IndexedCell], tell: ReportProgress
) -> Iterator[CellResult]:
    """Results of the numbered ``cells``, in their order. ``tell`` hears what is being done, and how far it is."""
    for _, group in groupby(cells, key=lambda one: (one[1].model, one[1].device, one[1].dtype)):
        todo = list(group)
        tell(f"loading {todo[0][1].model}")
        setting = next(iter(composer.of(todo[0][1]).values()))
        try:
            engine = make_engine(setting)
        except STEP_ERRORS as error:
            yield from (CellResult(index, cell.id, cell, refused=one_line(error)) for index, cell in todo)
            continue
        with closing(engine):
            bench = CellRunner(config, composer, engine, recordings)
            for index, cell in todo:
                yield bench.run(index, cell, tell)


class CellRunner:
    """What the cells of one engine share."""

    def __init__(self, config: DictConfig, composer: Composer, engine: Engine, recordings: Recordings) -> None:
        self._config, self._composer, self._engine, self._recordings = config, composer, engine, recordings
        self._loaded: SentenceEncoder | None = None
        self._meter = RateMeter(engine.decoder.device, engine.spec.dtype, composer.setting.engine.link_gigabytes)

    @property
    def _device(self) -> torch.device:
        return self._engine.decoder.device

    def run(self, index: int, cell: Cell, tell: ReportProgress) -> CellResult:
        began, configs = time.perf_counter(), self._composer.of(cell)
        setting = next(iter(configs.values()))
        plan = plan_of(self._config, cell, setting.memory.grouping.window)
        scripts = make_workload(plan, self._recordings)
        contenders, refused = self._contenders(configs, cell)
        race = InterleavedTiming(contenders, self._device, self._meter, lambda lap: tell(cell.id, lap))
        if self._config.latency.warmup:
            race.warm_up(scripts[0].first(self._config.latency.warmup))
        race.run(scripts)
        order = [*configs, *(one.name for one in contenders if isinstance(one, PlainForward))]
        tracks = {**race.tracks, **refused}
        self._let_go()
        spent = time.perf_counter() - began
        return CellResult(index, cell.id, cell, [tracks[name] for name in order], race.rates, seconds=spent)

    def _contenders(self, configs: Mapping[str, DictConfig], cell: Cell) -> tuple[list[Contender], dict[str, Track]]:
        """Those that can be made, and tracks of the others that say why not."""
        setting = next(iter(configs.values()))
        prompt_format, encoder = self._format(setting, cell), self._encoder(setting.prompt.encoder)
        made: list[PlannerContender] = []
        refused: dict[str, Track] = {}
        for name, config in configs.items():
            try:
                made.append(PlannerContender(name, config, self._engine, prompt_format, encoder))
            except KeepError as error:
                refused[name] = Track(name, config.memory.layout, refused=str(error))
        return [*made, *self._plain(made)], refused

    def _plain(self, made: Sequence[PlannerContender]) -> list[PlainForward]:
        """The plain forward beside full recomputation, or whoever has such a prompt."""
        if not (self._composer.plain and made):
            return []
        rebuilt = [one for one in made if one.prompt == "memory"]
        best = [one for one in made if one.name == REFERENCE]
        return [PlainForward(self._engine, [*best, *rebuilt, *made][0])]

    def _format(self, setting: DictConfig, cell: Cell) -> Format:
        tokenizer = make_tokenizer(setting.model, self._engine.model)
        examples = make_examples(setting.env, setting.prompt.examples, setting.eval.seed)
        inner = make_format(setting.prompt.format, tokenizer, examples, setting.prompt.start)
        return FixedLengthFormat(inner, cell.segment_tokens)

    def _encoder(self, name: str) -> SentenceEncoder:
        """The one of all methods, loaded, without a memory of its own."""
        if self._loaded is None:
            self._loaded = make_encoder(name).inner
            self._loaded.encode(["ready\n"])
        return self._loaded

    def _let_go(self) -> None:
        """What a cell has left on the device."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
