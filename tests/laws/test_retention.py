"""Law 8: eviction equals a dense mask that hides the same rows; surviving rows keep their slots.

Error: largest difference over the largest expected magnitude.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from memory.construction.turns import Turns
from memory.engine.base import ChunkSchedule, Engine
from memory.kv_cache.cache_view import CacheView
from memory.kv_cache.paged import PagedCache
from memory.retention.keep_all import KeepAll
from memory.retention.query_memory import QueryMemory
from memory.retention.snapkv import SnapKV
from memory.stages import Retention
from tests.laws.conftest import GetEngine
from tests.laws.prompts import eager_weights, relative, tokens
from tests.laws.transcripts import BUDGET, CANDIDATES, CONTEXT, EVICTING, STORY, Session, Turn, policy, random_head
from tests.references.isolated import dense_mask

GetPolicy = Callable[[str, Engine], Retention]


@pytest.fixture(scope="session")
def policy_of(tmp_path_factory: pytest.TempPathFactory) -> GetPolicy:
    """Return a function that makes a retention stage by name, for a model's head_dim."""
    folder: Path = tmp_path_factory.mktemp("heads")
    return lambda name, engine: policy(name, random_head(engine.info.head_dim, folder))


def bytes_of(cache: PagedCache, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return cache.pool.k[:, :, slots].clone(), cache.pool.v[:, :, slots].clone()


def check_survivors(session: Session, slots: torch.Tensor, rows: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Check that live positions still have the slots and the rows that they had before the eviction."""
    cache = session.cache
    live = cache.positions
    assert torch.equal(cache.slot_map[live], slots[live])
    assert all(torch.equal(new, old[:, :, live]) for new, old in zip(bytes_of(cache, slots[live]), rows, strict=True))
    assert cache.next_position == slots.numel() == len(cache.tokens), "eviction must not change counters"
    assert cache.tokens == session.ids, "eviction must not change tokens"


def check_forced(session: Session, turn: Turn, instruction: range) -> None:
    live = set(session.cache.positions.tolist())
    query = range(len(session.ids) - len(turn.query), len(session.ids))
    forced = {*range(len(CONTEXT)), *instruction, *query}
    assert forced <= live and len(live) == min(len(live | forced), max(BUDGET, len(forced)))


@pytest.mark.parametrize("name", EVICTING)
def test_law_8_eviction_equals_masking(name: str, engine: Engine, policy_of: GetPolicy) -> None:
    session, instruction = Session(engine, policy_of(name, engine)), range(0)
    for turn in STORY:
        prompt, result = session.prefill(turn)
        session.check(result)
        if turn.instruction:
            instruction = range(prompt.layout.query, prompt.layout.query + turn.instruction)
        slots, rows = session.cache.slot_map.clone(), bytes_of(session.cache, session.cache.slot_map)
        session.evict(prompt, result)
        check_survivors(session, slots, rows)
        check_forced(session, turn, instruction)
        assert session.cache.length == BUDGET, "the budget must be used completely"
        session.answer(turn)
    assert session.cache.exact < BUDGET < session.cache.dropped


@pytest.mark.parametrize("name", EVICTING)
def test_law_8_for_candidates_and_decoding(name: str, engine: Engine, policy_of: GetPolicy) -> None:
    """Score and decode after a cache with gaps, in which sliding layers count positions, not rows."""
    session = Session(engine, policy_of(name, engine))
    for turn in STORY[:2]:
        session.turn(turn)
    for turn in STORY[2:4]:
        prompt, result = session.prefill(turn)
        session.evict(prompt, result)
        length, slots = session.cache.length, session.cache.slot_map.clone()
        expected = torch.stack([likelihood(session, result.logits[0], candidate) for candidate in CANDIDATES])
        assert relative(engine.score(session.cache, CANDIDATES).scores, expected) < 1e-5
        session.provider.pool.check_integrity()
        answer = engine.generate(session.cache, result.logits, 4)
        session.provider.pool.check_integrity()
        session.cache.rewind(length, result.logits)
        session.provider.pool.check_integrity()
        assert torch.equal(session.cache.slot_map, slots)
        following = session.dense(answer)[len(session.ids) : -1].argmax(-1).tolist()
        assert answer == [int(result.logits[0].argmax()), *following]
        session.answer(turn)


def likelihood(session: Session, first: torch.Tensor, candidate: list[int]) -> torch.Tensor:
    logits = torch.cat([first[None].cpu(), session.dense(candidate)[len(session.ids) : -1]]).log_softmax(-1)
    return logits.gather(1, torch.tensor(candidate)[:, None]).sum()


def test_keep_all_evicts_nothing(engine: Engine) -> None:
    session = Session(engine, KeepAll())
    for turn in STORY:
        logits = session.turn(turn)
        assert relative(logits, engine.forward_plain(torch.tensor(session.ids))[-1]) < 1e-5
        assert session.cache.dropped == 0 and session.cache.exact == len(session.ids)


def test_the_story_distinguishes_all_policies(engine_of: GetEngine, policy_of: GetPolicy) -> None:
    """Policies must keep different rows, and evictions must change the logits; otherwise the laws say little."""
    engine = engine_of("gemma3_text")
    survivors = []
    for name in EVICTING:
        session = Session(engine, policy_of(name, engine))
        errors = [relative(session.turn(turn), engine.forward_plain(torch.tensor(session.ids))[-1]) for turn in STORY]
        assert errors[0] < 1e-5 and min(errors[1:]) > 1e-3
        survivors.append(tuple(session.cache.positions.tolist()))
    assert len(set(survivors)) == len(survivors)


class RecordingQueryMemory(QueryMemory):
    def keep(self, view: CacheView) -> torch.Tensor:
        self.view = view
        return super().keep(view)


class RecordingAttention(RecordingQueryMemory):
    """Query memory that also requests the attention by all rows and by the last six rows."""

    counts_mass, window = True, 6

    def keep(self, view: CacheView) -> torch.Tensor:
        self.attention = [SnapKV(window=6, kernel=1).window_attention(view, layer) for layer in range(view.layers)]
        return super().keep(view)


def test_stages_get_the_models_own_attention_weights(engine: Engine) -> None:
    """The weights respect sliding windows and attention sinks."""
    stage = RecordingAttention(BUDGET)
    session = Session(engine, stage)
    for turn in STORY:
        session.turn(turn)
        rows, view, live = torch.arange(len(session.ids)), stage.view, stage.view.positions.cpu()
        weights = eager_weights(engine, session.ids, dense_mask(engine.plain, session.visible, rows, rows))
        assert relative(view.mass, sum(w.sum((0, 1)) for w in weights)[live]) < 1e-5
        before = live[live < len(session.ids) - 6]
        for attention, paid in zip(stage.attention, weights, strict=True):
            assert relative(attention, paid[:, -6:].mean(1)[:, before]) < 1e-5


def test_an_instruction_is_protected_until_it_is_replaced_or_its_text_disappears(engine_of: GetEngine) -> None:
    stage = RecordingQueryMemory(BUDGET)
    session, spans = Session(engine_of("qwen2", torch.float64), stage), []
    for turn in STORY[:3]:
        session.turn(turn)
        spans.append(stage.view.positions[stage.view.span].tolist())
    instruction, query = range(39, 42), range(len(session.ids) - 8, len(session.ids))
    assert spans[0] == list(range(39, 45)) and spans[2] == [*instruction, *query]
    session.transcript = tokens(60, 9)  # a new transcript, with other text at the instruction's rows
    session.turn(STORY[1])
    assert stage.view.positions[stage.view.span].tolist() == list(range(len(session.ids) - 5, len(session.ids)))


def test_the_mean_query_covers_the_rows_that_the_session_computed(engine_of: GetEngine) -> None:
    """A session that reuses another session's rows has no queries for them, and averages its own queries."""
    engine, stages = engine_of("qwen2", torch.float64), (RecordingQueryMemory(300), RecordingQueryMemory(300))
    first = Session(engine, stages[0])
    second = Session(engine, stages[1], provider=first.provider)
    for session in (first, second):
        session.turn(Turn(tuple(tokens(20, 1)), tuple(tokens(10, 2)), 3, ()))
    assert len(second.cache.observer.places) < 10, "the other rows are those of the first session"
    means = []
    for session, turn in ((first, STORY[1]), (second, STORY[2])):
        session.turn(turn)
        queries = [session.cache.observer.queries[layer][:, -len(turn.query) :] for layer in range(engine.info.layers)]
        means.append(torch.stack(queries).mean(2).float())
    assert relative(stages[1].view.intent, means[1]) < 1e-5
    assert relative(stages[0].view.intent, means[0]) > 1e-2, "the first session also averages its instruction's queries"
    assert stages[1].view.span[25:28].all(), "both sessions protect the instruction"


@pytest.mark.parametrize(
    ("name", "survivors"), [("none", "stay"), ("h2o", "stay"), ("snapkv", "stay"), ("h2o", "move")]
)
def test_chunks_change_nothing(name: str, survivors: str, engine: Engine, policy_of: GetPolicy) -> None:
    """Chunking changes neither logits, surviving rows, attention mass nor queries."""
    construction, steps = Turns(block_size=4, survivors=survivors), ((20, 16), (60, 5))
    schedules = [None, ChunkSchedule(one_pass=1, steps=(), rest=7), ChunkSchedule(one_pass=12, steps=steps, rest=3)]
    stages = [KeepAll() if name == "none" else policy_of(name, engine) for _ in schedules]
    sessions = [Session(engine, stage, construction, chunks) for stage, chunks in zip(stages, schedules, strict=True)]
    for turn in STORY[:4]:
        runs = [session.prefill(turn) for session in sessions]
        for session, (_, result) in zip(sessions, runs, strict=True):
            check_same(session.cache, sessions[0].cache)
            assert relative(result.logits, runs[0][1].logits) < 1e-5
        if survivors == "stay":
            sessions[0].check(runs[0][1])
        for session, run in zip(sessions, runs, strict=True):
            session.evict(*run)
            session.answer(turn)


def check_same(cache: PagedCache, expected: PagedCache) -> None:
    assert torch.equal(cache.positions, expected.positions)
    assert torch.equal(cache.observer.places, expected.observer.places)
    assert all(relative(cache.observer.queries[layer], q) < 1e-5 for layer, q in expected.observer.queries.items())
    masses = (item.observer.mass(item.positions) for item in (cache, expected))
    torch.testing.assert_close(*masses, rtol=1e-4, atol=1e-4)
