"""Law 8: what a retention stage forgets is what a dense mask hides; what survives stays where it is.

Norm: largest difference over the largest expected magnitude.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from memory.construction.turns import Turns
from memory.engine.base import Engine
from memory.engine.chunking import ChunkSchedule
from memory.kv_cache.cache_view import CacheView
from memory.kv_cache.paged import PagedCache
from memory.retention.keep_all import KeepAll
from memory.retention.query_memory import QueryMemory
from memory.retention.snapkv import SnapKV
from memory.stages import Retention
from tests.laws.conftest import GetEngine
from tests.laws.prompts import relative, tokens
from tests.laws.transcripts import BUDGET, CANDIDATES, CONTEXT, EVICTING, STORY, Told, Turn, policy, random_head
from tests.references.isolated import dense_mask

GetPolicy = Callable[[str, Engine], Retention]


@pytest.fixture(scope="session")
def policy_of(tmp_path_factory: pytest.TempPathFactory) -> GetPolicy:
    """A retention stage by its name, for a model's head_dim."""
    folder: Path = tmp_path_factory.mktemp("heads")
    return lambda name, engine: policy(name, random_head(engine.info.head_dim, folder))


def bytes_of(cache: PagedCache, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return cache.pool.k[:, :, slots].clone(), cache.pool.v[:, :, slots].clone()


def check_survivors(told: Told, slots: torch.Tensor, rows: tuple[torch.Tensor, torch.Tensor]) -> None:
    """``slots`` of all positions and their ``rows`` before the eviction: those that are live still have both."""
    cache = told.cache
    live = cache.positions
    assert torch.equal(cache.slot_map[live], slots[live])
    assert all(torch.equal(new, old[:, :, live]) for new, old in zip(bytes_of(cache, slots[live]), rows, strict=True))
    assert cache.next_position == slots.numel() == len(cache.tokens), "dropping changes no counter"
    assert cache.tokens == told.ids, "and no token"


def check_forced(told: Told, turn: Turn, instruction: range) -> None:
    live = set(told.cache.positions.tolist())
    query = range(len(told.ids) - len(turn.query), len(told.ids))
    forced = {*range(len(CONTEXT)), *instruction, *query}
    assert forced <= live
    assert len(live) == min(len(live | forced), max(BUDGET, len(forced)))


@pytest.mark.parametrize("name", EVICTING)
def test_law_8_forgetting_is_hiding(name: str, engine: Engine, policy_of: GetPolicy) -> None:
    """Turn by turn, each with an eviction behind it."""
    told, instruction = Told(engine, policy_of(name, engine)), range(0)
    for turn in STORY:
        prompt, result = told.prefill(turn)
        told.check(result)
        if turn.instruction:
            instruction = range(prompt.layout.query, prompt.layout.query + turn.instruction)
        slots, rows = told.cache.slot_map.clone(), bytes_of(told.cache, told.cache.slot_map)
        told.evict(prompt, result)
        check_survivors(told, slots, rows)
        check_forced(told, turn, instruction)
        assert told.cache.length == BUDGET, "exactly: the forced rows leave room"
        told.answer(turn)
    assert told.cache.exact < BUDGET < told.cache.dropped


@pytest.mark.parametrize("name", EVICTING)
def test_law_8_for_candidates_and_decoding(name: str, engine: Engine, policy_of: GetPolicy) -> None:
    """Behind a cache with gaps: sliding layers count positions, not rows. The first token was decided before."""
    told = Told(engine, policy_of(name, engine))
    for turn in STORY[:2]:
        told.turn(turn)
    for turn in STORY[2:4]:
        prompt, result = told.prefill(turn)
        told.evict(prompt, result)
        length, slots = told.cache.length, told.cache.slot_map.clone()
        expected = torch.stack([likelihood(told, result.logits[0], candidate) for candidate in CANDIDATES])
        assert relative(engine.score(told.cache, CANDIDATES).scores, expected) < 1e-5
        told.shelf.pool.check_integrity()
        said = engine.generate(told.cache, result.logits, 4)
        told.shelf.pool.check_integrity()
        told.cache.rewind(length, result.logits)
        told.shelf.pool.check_integrity()
        assert torch.equal(told.cache.slot_map, slots)
        assert said == [int(result.logits[0].argmax()), *told.dense(said)[len(told.ids) : -1].argmax(-1).tolist()]
        told.answer(turn)


def likelihood(told: Told, first: torch.Tensor, candidate: list[int]) -> torch.Tensor:
    logits = torch.cat([first[None].cpu(), told.dense(candidate)[len(told.ids) : -1]]).log_softmax(-1)
    return logits.gather(1, torch.tensor(candidate)[:, None]).sum()


def test_nothing_is_forgotten_without_a_budget(engine: Engine) -> None:
    told = Told(engine, KeepAll())
    for turn in STORY:
        logits = told.turn(turn)
        assert relative(logits, engine.forward_plain(torch.tensor(told.ids))[-1]) < 1e-5
        assert told.cache.dropped == 0 and told.cache.exact == len(told.ids)


def test_the_story_tells_policies_apart(engine_of: GetEngine, policy_of: GetPolicy) -> None:
    """Otherwise the laws above would be one law, five times; and forgetting has to matter."""
    engine = engine_of("gemma3_text")
    kept = []
    for name in EVICTING:
        told = Told(engine, policy_of(name, engine))
        errors = [relative(told.turn(turn), engine.forward_plain(torch.tensor(told.ids))[-1]) for turn in STORY]
        assert errors[0] < 1e-5 and min(errors[1:]) > 1e-3
        kept.append(tuple(told.cache.positions.tolist()))
    assert len(set(kept)) == len(kept)


class Noted(QueryMemory):
    """The stage, and the views it was given."""

    def keep(self, view: CacheView) -> torch.Tensor:
        self.view = view
        return super().keep(view)


class Paid(Noted):
    """One that wants to know what attention was paid, by all rows and by the last six."""

    counts_mass, window = True, 6

    def keep(self, view: CacheView) -> torch.Tensor:
        self.votes = [SnapKV(window=6, kernel=1).votes(view, layer) for layer in range(view.layers)]
        return super().keep(view)


@torch.no_grad()
def eager_weights(told: Told) -> list[torch.Tensor]:
    """(heads, rows, rows) per layer from transformers, each row seeing what was live when it was computed."""
    twin, rows = told.engine.plain, torch.arange(len(told.ids))
    before = twin.config._attn_implementation
    twin.set_attn_implementation("eager")
    mask = dense_mask(twin, told.visible, rows, rows)
    out = twin(torch.tensor([told.ids]), attention_mask=mask, output_attentions=True, use_cache=False)
    twin.set_attn_implementation(before)
    return [weights[0] for weights in out.attentions]


def test_what_stages_choose_by_is_the_attention_that_the_model_pays(engine: Engine) -> None:
    """Within a sliding layer's window, and beside what a sink takes."""
    stage = Paid(BUDGET)
    told = Told(engine, stage)
    for turn in STORY:
        told.turn(turn)
        view, weights, live = stage.view, eager_weights(told), stage.view.positions.cpu()
        assert relative(view.mass, sum(w.sum((0, 1)) for w in weights)[live]) < 1e-5
        before = live[live < len(told.ids) - 6]
        for votes, paid in zip(stage.votes, weights, strict=True):
            assert relative(votes, paid[:, -6:].mean(1)[:, before]) < 1e-5


def test_an_instruction_holds_until_another_comes_or_its_text_is_gone(engine_of: GetEngine) -> None:
    stage = Noted(BUDGET)
    told, spans = Told(engine_of("qwen2", torch.float64), stage), []
    for turn in STORY[:3]:
        told.turn(turn)
        spans.append(stage.view.positions[stage.view.span].tolist())
    instruction, query = range(39, 42), range(len(told.ids) - 8, len(told.ids))
    assert spans[0] == list(range(39, 45)) and spans[2] == [*instruction, *query]
    told.told = tokens(60, 9)  # the transcript begins anew, and says something else where the instruction stood
    told.turn(STORY[1])
    assert stage.view.positions[stage.view.span].tolist() == list(range(len(told.ids) - 5, len(told.ids)))


def test_the_mean_query_is_that_of_the_rows_that_were_computed(engine_of: GetEngine) -> None:
    """A session that takes up another's rows knows no queries of theirs; those it knows weigh as they should."""
    engine, stages = engine_of("qwen2", torch.float64), (Noted(300), Noted(300))
    first = Told(engine, stages[0])
    second = Told(engine, stages[1], shelf=first.shelf)
    for session in (first, second):
        session.turn(Turn(tuple(tokens(20, 1)), tuple(tokens(10, 2)), 3, ()))
    assert len(second.cache.observer.places) < 10, "the others were taken up"
    means = []
    for session, turn in ((first, STORY[1]), (second, STORY[2])):
        session.turn(turn)
        queries = [session.cache.observer.queries[layer][:, -len(turn.query) :] for layer in range(engine.info.layers)]
        means.append(torch.stack(queries).mean(2).float())
    assert relative(stages[1].view.intent, means[1]) < 1e-5
    assert relative(stages[0].view.intent, means[0]) > 1e-2, "which knows its instruction"
    assert stages[1].view.span[25:28].all(), "but both keep it"


@pytest.mark.parametrize("name", ["none", "h2o", "snapkv"])
def test_chunks_change_nothing(name: str, engine: Engine, policy_of: GetPolicy) -> None:
    chunk_by_chunk(engine, policy_of, name, Turns(block_size=4))


@pytest.mark.parametrize("family", ["gemma3_text", "gpt_oss"])
def test_chunks_change_nothing_where_survivors_move(family: str, engine_of: GetEngine, policy_of: GetPolicy) -> None:
    chunk_by_chunk(engine_of(family), policy_of, "h2o", Turns(block_size=4, survivors="move"))


def chunk_by_chunk(engine: Engine, policy_of: GetPolicy, name: str, construction: Turns) -> None:
    """Neither logits nor what survives: mass and queries are the same whichever way rows were computed."""
    ways = [None, ChunkSchedule(whole=1, steps=(), rest=7), ChunkSchedule(whole=12, steps=((20, 16), (60, 5)), rest=3)]
    stages = [KeepAll() if name == "none" else policy_of(name, engine) for _ in ways]
    sessions = [Told(engine, stage, construction, way) for stage, way in zip(stages, ways, strict=True)]
    for turn in STORY[:4]:
        runs = [session.prefill(turn) for session in sessions]
        for session, (_, result) in zip(sessions, runs, strict=True):
            check_same(session.cache, sessions[0].cache)
            assert relative(result.logits, runs[0][1].logits) < 1e-5
        if construction.survivors == "stay":
            sessions[0].check(runs[0][1])
        for session, run in zip(sessions, runs, strict=True):
            session.evict(*run)
            session.answer(turn)


def check_same(cache: PagedCache, other: PagedCache) -> None:
    """The same rows are live, and whoever looked on saw the same."""
    assert torch.equal(cache.positions, other.positions)
    assert torch.equal(cache.observer.places, other.observer.places)
    assert all(relative(cache.observer.queries[layer], q) < 1e-5 for layer, q in other.observer.queries.items())
    masses = (one.observer.mass(one.positions) for one in (cache, other))
    torch.testing.assert_close(*masses, rtol=1e-4, atol=1e-4)
