"""Law 6 for retention: the same rows survive, turn after turn, as in the slow, dense reference of the paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import zip_longest

import pytest
import torch
from safetensors.torch import load_file

from memory.engine.base import Engine
from memory.kv_cache.cache_view import CacheView
from memory.retention.h2o import H2O
from memory.retention.query_memory import QueryMemory
from memory.retention.snapkv import SnapKV
from memory.retention.streaming import Streaming
from memory.stages import Retention
from tests.laws.conftest import GetEngine
from tests.laws.prompts import relative
from tests.laws.test_policies import FAMILIES
from tests.laws.transcripts import BUDGET, CONTEXT, STORY, Told, random_head
from tests.references.h2o import h2o_keep
from tests.references.intentkv import IntentKV
from tests.references.snapkv import snapkv_keep
from tests.references.transcript import Transcript

Keep = Callable[[set[int], list[int]], None]  # of a reference: forced rows, and the rows of the query span
Run = tuple[list[list[int]], list[float]]  # the rows that are live after each turn, and the last turn's scores
GetRun = Callable[[str, str], Run]


@dataclass
class Noted(QueryMemory):
    """The stage itself, and the scores it gave last."""

    given: torch.Tensor = field(default_factory=lambda: torch.empty(0))

    def scores(self, view: CacheView, memory: torch.Tensor) -> torch.Tensor:
        self.given = super().scores(view, memory)
        return self.given


def agree(engine: Engine, stage: Retention, transcript: Transcript, keep: Keep, taken_back: Sequence[int] = ()) -> Run:
    """Turn after turn the same rows are live, and the logits behind them are the same.

    ``taken_back``: so many rows that the transcript ended with before each turn are not in it any more.
    """
    told, kept, instruction, before = Told(engine, stage), [], range(0), CONTEXT
    for turn, gone in zip_longest(STORY, taken_back, fillvalue=0):
        if gone:
            told.told = told.told[: len(told.ids) - gone - len(CONTEXT)]
            transcript.take_back(len(told.ids) - gone)
            instruction, before = instruction if instruction.stop <= len(transcript.ids) else range(0), ()
        logits = told.turn(turn)
        assert relative(logits, transcript.tell([*before, *turn.news, *turn.query])) < 1e-5
        query = range(len(transcript.ids) - len(turn.query), len(transcript.ids))
        if turn.instruction:
            instruction = range(query.start, query.start + turn.instruction)
        span, before = sorted({*instruction, *query}), turn.answer
        keep({*range(len(CONTEXT)), *span}, span)
        assert told.cache.positions.tolist() == transcript.live
        kept.append(transcript.live)
    return kept, list(transcript.scores.values())


def streaming(engine: Engine, stage: Streaming) -> Run:
    transcript = Transcript(engine.model.module)

    def keep(forced: set[int], span: list[int]) -> None:
        history = [row for row in transcript.live if row not in forced]
        first = dict.fromkeys(history[: stage.sinks], float("inf"))
        transcript.keep(forced, {row: first.get(row, float(row)) for row in history}, stage.budget)

    return agree(engine, stage, transcript, keep)


def h2o(engine: Engine, stage: H2O, taken_back: Sequence[int] = ()) -> Run:
    transcript, knobs = Transcript(engine.model.module), (stage.budget, stage.recent)
    return agree(engine, stage, transcript, lambda forced, span: h2o_keep(transcript, forced, *knobs), taken_back)


def snapkv(engine: Engine, stage: SnapKV) -> Run:
    transcript, knobs = Transcript(engine.model.module), (stage.budget, stage.window, stage.kernel, stage.pooling)
    return agree(engine, stage, transcript, lambda forced, span: snapkv_keep(transcript, forced, *knobs))


def intentkv(engine: Engine, stage: Noted) -> Run:
    transcript = Transcript(engine.model.module)
    head = None if stage.head is None else {name: w.double() for name, w in load_file(stage.head).items()}
    knobs = {"memory": stage.memory, "cross_attention": stage.cross_attention, "residual": stage.residual}
    reference = IntentKV(transcript, stage.budget, stage.decay, head, **knobs)

    def keep(forced: set[int], span: list[int]) -> None:
        reference.keep(forced, span)
        assert relative(stage.given, torch.tensor(list(transcript.scores.values()))) < 1e-5

    return agree(engine, stage, transcript, keep)


STAGES: dict[str, Retention] = {
    **{f"streaming {sinks}": Streaming(BUDGET, sinks) for sinks in (0, 3, 100)},
    **{f"h2o {recent}": H2O(BUDGET, recent) for recent in (0.0, 0.3, 1.0)},
    "snapkv": SnapKV(BUDGET, window=6),
    "snapkv mean": SnapKV(BUDGET, window=6, kernel=5, pooling="mean"),
    "snapkv wide": SnapKV(BUDGET, window=12, kernel=1),
    "rule": Noted(BUDGET),
    "rule fades": Noted(BUDGET, decay=3),
    "rule of one query": Noted(BUDGET, memory=False),
    "head": Noted(BUDGET, head="random"),
    "head without memory": Noted(BUDGET, head="random", memory=False),
    "head without cross-attention": Noted(BUDGET, head="random", cross_attention=False),
    "head without residual": Noted(BUDGET, head="random", residual=False),
}
REFERENCES = {Streaming: streaming, H2O: h2o, SnapKV: snapkv, Noted: intentkv}


@pytest.fixture(scope="module")
def run_of(engine_of: GetEngine, tmp_path_factory: pytest.TempPathFactory) -> GetRun:
    """What both keep, by family and name of the stage."""
    head = random_head(16, tmp_path_factory.mktemp("heads"))  # the head_dim of all three families

    @cache
    def run(family: str, name: str) -> Run:
        stage = STAGES[name]
        if getattr(stage, "head", None):
            stage = replace(stage, head=head)
        return REFERENCES[type(stage)](engine_of(family, torch.float64), stage)

    return run


@FAMILIES
@pytest.mark.parametrize("name", STAGES)
def test_law_6_retention(family: str, name: str, run_of: GetRun) -> None:
    """As many rows as the budget says survive, for the forced ones leave room."""
    assert [len(live) for live in run_of(family, name)[0]] == [BUDGET] * len(STORY)


@FAMILIES
def test_law_6_h2o_of_a_transcript_whose_end_is_taken_back(family: str, run_of: GetRun, engine_of: GetEngine) -> None:
    """In the middle of what was computed at once: a row that is not there any more leaves no attention behind."""
    engine, gone = engine_of(family, torch.float64), (0, 17, 3, 0, 20, 30)
    runs = [h2o(engine, H2O(BUDGET, recent), gone)[0] for recent in (0.0, 0.3)]
    assert runs[0] != runs[1] and runs[0] != run_of(family, "h2o 0.0")[0]


@pytest.mark.parametrize("name", ["h2o 0.0", "snapkv wide", "rule"])
def test_what_was_generated_and_taken_back_leaves_no_trace(name: str, run_of: GetRun, engine_of: GetEngine) -> None:
    """The same rows survive as if nobody had asked: neither their attention nor their queries count."""
    told, kept = Told(engine_of("qwen2", torch.float64), STAGES[name]), []
    for turn in STORY:
        logits, length = told.turn(turn), told.cache.length
        kept.append(told.cache.positions.tolist())
        told.engine.generate(told.cache, logits[None], 20)
        told.cache.rewind(length, logits[None])
    assert kept == run_of("qwen2", name)[0]


def test_the_story_tells_knobs_apart(run_of: GetRun) -> None:
    """Otherwise the law would hold for stages that ignore them."""
    runs = {name: str(run_of("qwen2", name)) for name in STAGES}
    assert runs.pop("head without residual") == runs["rule"], "which is what it is"
    assert len(set(runs.values())) == len(runs)
