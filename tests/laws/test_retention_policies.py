"""Law 6 for retention: after every turn the same rows survive as in the dense reference of the paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
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
from tests.laws.transcripts import BUDGET, CONTEXT, STORY, Session, random_head
from tests.references.h2o import h2o_keep
from tests.references.intentkv import IntentKV
from tests.references.snapkv import snapkv_keep
from tests.references.transcript import Transcript

Keep = Callable[[set[int], list[int]], None]  # eviction of a reference, from forced rows and rows of the query span
Run = tuple[list[list[int]], list[float]]  # live rows after each turn, and scores of the last turn
GetRun = Callable[[str, str], Run]


class RecordingQueryMemory(QueryMemory):
    latest = torch.empty(0)

    def scores(self, view: CacheView, memory: torch.Tensor) -> torch.Tensor:
        self.latest = super().scores(view, memory)
        return self.latest


def agree(engine: Engine, stage: Retention, transcript: Transcript, keep: Keep, removals: Sequence[int] = ()) -> Run:
    """Check that session and reference have the same live rows and logits in every turn.

    :param removals: number of rows to remove from the end of the transcript before each turn
    """
    session, survivors, instruction, before = Session(engine, stage), [], range(0), CONTEXT
    for turn, removal in zip_longest(STORY, removals, fillvalue=0):
        if removal:
            session.transcript = session.transcript[: len(session.ids) - removal - len(CONTEXT)]
            transcript.cut(len(session.ids) - removal)
            instruction, before = instruction if instruction.stop <= len(transcript.ids) else range(0), ()
        logits = session.turn(turn)
        assert relative(logits, transcript.append([*before, *turn.news, *turn.query])) < 1e-5
        query = range(len(transcript.ids) - len(turn.query), len(transcript.ids))
        if turn.instruction:
            instruction = range(query.start, query.start + turn.instruction)
        span, before = sorted({*instruction, *query}), turn.answer
        keep({*range(len(CONTEXT)), *span}, span)
        assert session.cache.positions.tolist() == transcript.live
        survivors.append(transcript.live)
    return survivors, list(transcript.scores.values())


def streaming(engine: Engine, stage: Streaming) -> Run:
    transcript = Transcript(engine.model.module)

    def keep(forced: set[int], span: list[int]) -> None:
        history = [row for row in transcript.live if row not in forced]
        first = dict.fromkeys(history[: stage.sinks], float("inf"))
        transcript.keep(forced, {row: first.get(row, float(row)) for row in history}, stage.budget)

    return agree(engine, stage, transcript, keep)


def h2o(engine: Engine, stage: H2O, removals: Sequence[int] = ()) -> Run:
    transcript, options = Transcript(engine.model.module), (stage.budget, stage.recent)
    return agree(engine, stage, transcript, lambda forced, span: h2o_keep(transcript, forced, *options), removals)


def snapkv(engine: Engine, stage: SnapKV) -> Run:
    transcript, options = Transcript(engine.model.module), (stage.budget, stage.window, stage.kernel, stage.pooling)
    return agree(engine, stage, transcript, lambda forced, span: snapkv_keep(transcript, forced, *options))


def intentkv(engine: Engine, stage: RecordingQueryMemory) -> Run:
    transcript = Transcript(engine.model.module)
    head = None if stage.head is None else {name: w.double() for name, w in load_file(stage.head).items()}
    options = {"memory": stage.memory, "cross_attention": stage.cross_attention, "residual": stage.residual}
    reference = IntentKV(transcript, stage.budget, stage.decay, head, **options)

    def keep(forced: set[int], span: list[int]) -> None:
        reference.keep(forced, span)
        assert relative(stage.latest, torch.tensor(list(transcript.scores.values()))) < 1e-5

    return agree(engine, stage, transcript, keep)


STAGES: dict[str, Retention] = {
    **{f"streaming {sinks}": Streaming(BUDGET, sinks) for sinks in (0, 3, 100)},
    **{f"h2o {recent}": H2O(BUDGET, recent) for recent in (0.0, 0.3, 1.0)},
    "snapkv": SnapKV(BUDGET, window=6),
    "snapkv mean": SnapKV(BUDGET, window=6, kernel=5, pooling="mean"),
    "snapkv wide": SnapKV(BUDGET, window=12, kernel=1),
    "rule": RecordingQueryMemory(BUDGET),
    "rule fades": RecordingQueryMemory(BUDGET, decay=3),
    "rule of one query": RecordingQueryMemory(BUDGET, memory=False),
    "head": RecordingQueryMemory(BUDGET, head="random"),
    "head without memory": RecordingQueryMemory(BUDGET, head="random", memory=False),
    "head without cross-attention": RecordingQueryMemory(BUDGET, head="random", cross_attention=False),
    "head without residual": RecordingQueryMemory(BUDGET, head="random", residual=False),
}
REFERENCES = {Streaming: streaming, H2O: h2o, SnapKV: snapkv, RecordingQueryMemory: intentkv}


@pytest.fixture(scope="module")
def run_of(engine_of: GetEngine, tmp_path_factory: pytest.TempPathFactory) -> GetRun:
    """Return a function that compares stage and reference and returns their result, by family and stage name."""
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
    """Exactly the budget of rows survives, because the forced rows fit into it."""
    assert [len(live) for live in run_of(family, name)[0]] == [BUDGET] * len(STORY)


@FAMILIES
def test_law_6_h2o_after_removal_of_the_transcripts_end(family: str, run_of: GetRun, engine_of: GetEngine) -> None:
    """The attention of removed rows does not count, even if they were computed together with rows that stay."""
    engine, removals = engine_of(family, torch.float64), (0, 17, 3, 0, 20, 30)
    runs = [h2o(engine, H2O(BUDGET, recent), removals)[0] for recent in (0.0, 0.3)]
    assert runs[0] != runs[1] and runs[0] != run_of(family, "h2o 0.0")[0]


@pytest.mark.parametrize("name", ["h2o 0.0", "snapkv wide", "rule"])
def test_rows_that_were_generated_and_removed_have_no_effect(name: str, run_of: GetRun, engine_of: GetEngine) -> None:
    session, survivors = Session(engine_of("qwen2", torch.float64), STAGES[name]), []
    for turn in STORY:
        logits, length = session.turn(turn), session.cache.length
        survivors.append(session.cache.positions.tolist())
        session.engine.generate(session.cache, logits[None], 20)
        session.cache.rewind(length, logits[None])
    assert survivors == run_of("qwen2", name)[0]


def test_the_story_distinguishes_all_options(run_of: GetRun) -> None:
    """Without this, the law would hold for stages that ignore an option."""
    runs = {name: str(run_of("qwen2", name)) for name in STAGES}
    assert runs.pop("head without residual") == runs["rule"], "without its residual a head is the rule"
    assert len(set(runs.values())) == len(runs)
