"""History construction: sessions over blocks that are copied (harvested) from earlier prompts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from keep_agent.errors import CapacityError, ConfigError
from memory.construction.history import History
from memory.construction.prefix import Prefix
from memory.engine.base import Engine
from memory.engine.transformers.engine import TransformersEngine
from memory.loading.layer_balanced import LayerBalanced
from memory.loading.next_layer import NextLayer
from memory.method import MemoryMethod
from memory.prompt.report import Prefill
from memory.recompute.multi_hop import MultiHop, Schedule
from memory.recompute.none import Nothing
from memory.retrieval.all import All
from memory.retrieval.latent import Latent
from memory.session import MemorySession
from memory.stages import Capabilities
from memory.storage.ram import Ram
from tests.memory import sessions
from tests.memory.houses import furnish
from tests.memory.sessions import CONTEXT, GROUPING, LAYERS, QUERY, close, episode, furnished, open_session, plain

SIZE = 4


def history(**stages: Any) -> MemoryMethod:
    return replace(sessions.history(), **{"retrieval": All(), **stages})


def memart(top_k: int = 5, **stages: Any) -> MemoryMethod:
    return history(retrieval=Latent(top_k=top_k), **stages)


def per_layer() -> MemoryMethod:
    return history(retrieval=Latent(top_k=5, layers="each"))


def by_segment() -> MemoryMethod:
    return memart(construction=History(cut="segment"))


def turns_of(session: MemorySession, steps: int, seed: int = 0) -> Iterator[Prefill]:
    for prefill in episode(session, steps, seed):
        yield prefill
        session.append_turn([7])


def test_capabilities_of_the_methods() -> None:
    assert history().capabilities == Capabilities(exact=True, harvests=True)
    promised = Capabilities(exact=False, harvests=True, moves_blocks=True, latent=True)
    assert memart().capabilities == promised and per_layer().capabilities == replace(promised, per_layer=True)


@pytest.mark.parametrize(
    ("method", "hits"), [(history, None), (memart, 5 * SIZE), (per_layer, 5 * SIZE), (by_segment, None)]
)
def test_only_new_rows_are_computed(engine: Engine, method: Any, hits: int | None) -> None:
    for number, prefill in enumerate(turns_of(open_session(engine, method()), 6)):
        counts, layout = prefill.counts, prefill.layout
        new = counts.prompt_tokens - len(CONTEXT) - counts.hit_tokens
        assert set(prefill.trace.active_rows) == {new} and layout.positions.tolist() == list(range(layout.rows))
        whole = sum(unit.tokens for unit in prefill.units if unit.hit and unit.tokens >= SIZE)
        assert hits is None or whole == hits * (number > 0)
        assert method is not by_segment or all(len(unit.segments) == 1 for unit in prefill.units if unit.hit)


@pytest.mark.parametrize("method", [history, memart, per_layer])
def test_all_reused_rows_are_loaded(engine: Engine, method: Any) -> None:
    """Rows that each layer selects for itself count as loaded bytes and loading time too."""
    for prefill in turns_of(open_session(engine, method()), 4):
        counts, trace = prefill.counts, prefill.trace
        assert counts.loaded_bytes == counts.hit_tokens * engine.info.bytes_per_token
        spent = 1e3 * sum(load.end - load.start for load in trace.loads)
        assert prefill.timings.load >= 0.99 * spent
        for layer in range(LAYERS) if counts.hit_tokens else ():
            assert any(load.first <= layer < load.last for load in trace.loads)


def test_rows_of_the_next_layer_are_prefetched(engine: Engine) -> None:
    """The previous layer's selection is prefetched; a layer fetches only its own additional blocks."""
    with TransformersEngine(engine.model, "thread") as ahead:
        runs = (turns_of(open_session(e, per_layer()), 5) for e in (engine, ahead))
        for inline, prefill in zip(*runs, strict=True):
            choices = prefill.trace.chosen_blocks
            assert torch.equal(prefill.logits, inline.logits) and choices == inline.trace.chosen_blocks
            if not prefill.counts.hit_tokens:
                continue
            size = 2 * engine.info.kv_heads * SIZE * engine.info.head_dim * engine.info.dtype.itemsize
            surprises = [len(choices[0]), *(len(set(new) - set(old)) for old, new in pairwise(choices))]
            guesses = [len(choice) for choice in choices[:-1]]
            sizes = [load.nbytes for load in prefill.trace.loads if not load.runs]  # loads with runs are for all layers
            assert sorted(sizes) == sorted(size * count for count in surprises + guesses)


def test_the_incomplete_block_of_a_turn_is_in_every_prompt(engine: Engine) -> None:
    session = furnished(engine, memart(1))
    transcript: list[int] = []
    for _ in range(7):
        prefill = session.prefill("q", QUERY)
        ids, fresh = prefill.layout.token_ids, prefill.layout.fresh
        rest = len(transcript) % SIZE
        first = int(fresh.nonzero()[0])
        assert ids[first - rest : first].tolist() == transcript[len(transcript) - rest :]
        assert first == len(CONTEXT) + min(len(transcript) // SIZE, 1) * SIZE + rest
        transcript += ids[first:].tolist()


@pytest.mark.parametrize("method", [history, memart, per_layer])
def test_waiting_for_the_harvest_changes_nothing(engine: Engine, method: Any) -> None:
    waiting, hasty = open_session(engine, method()), open_session(engine, method())
    for a, b in zip(turns_of(waiting, 6), turns_of(hasty, 6), strict=True):
        assert torch.equal(a.logits, b.logits)
        assert [unit.identity for unit in a.units] == [unit.identity for unit in b.units]
        engine.in_background(lambda: None).result()  # waits for all background work
        scores = [session.score(p, [[5, 6], [5, 7, 8]]).scores for session, p in ((waiting, a), (hasty, b))]
        assert torch.equal(*scores)


@pytest.mark.parametrize("method", [history, memart])
def test_a_prefill_on_the_worker_does_not_wait_for_the_workers_queue(engine: Engine, method: Any) -> None:
    """An agent runs prefills on the worker: the previous turn's harvest is still queued behind them."""
    session, twin = open_session(engine, method()), open_session(engine, method())
    for s in (session, twin):
        furnish(s.store)

    def plans() -> list[torch.Tensor]:
        return [session.prefill("q", QUERY).logits for _ in range(3)]

    for logits in engine.run(plans):
        assert torch.equal(logits, twin.prefill("q", QUERY).logits)
        engine.in_background(lambda: None).result()


def test_candidates_and_answers_are_not_harvested(engine: Engine) -> None:
    """A harvest that runs after scoring and decoding still reads the prompt's rows only."""
    quiet, busy = open_session(engine, memart()), open_session(engine, memart())
    for a, b in zip(turns_of(quiet, 5), turns_of(busy, 5), strict=True):
        assert torch.equal(a.logits, b.logits)
        busy.score(b, [[5, 6 + i, *[9] * 40] for i in range(12)])
        busy.generate(b, 3)
        busy.generate(b, 2, keep=True)


def test_reset_deletes_all_blocks(engine: Engine) -> None:
    for method in (history(), memart(), per_layer(), by_segment()):
        session = open_session(engine, method)
        first = [prefill.logits for prefill in turns_of(session, 4)]
        session.reset()  # during a harvest
        assert method.storage.stats()["blocks"] == 0
        for prefill, expected in zip(turns_of(session, 4), first, strict=True):
            assert torch.equal(prefill.logits, expected) and prefill.cold == (prefill.counts.hit_tokens == 0)
            assert not prefill.cold or method.storage.stats()["blocks"] == 0, "the harvest must be discarded"


def test_names_of_blocks_depend_on_namespace_and_preceding_rows(engine: Engine) -> None:
    """In one storage, equal histories of one namespace share blocks, and no others do."""
    storage = Ram()
    methods = [memart(storage=storage), memart(4, storage=storage), per_layer(), history(storage=storage)]
    methods[2] = replace(methods[2], storage=storage)
    sessions = [open_session(engine, method) for method in (methods[0], *methods)]
    sessions.append(open_session(engine, methods[0], namespace="other"))
    runs = [[{u.identity for u in p.units if u.identity} for p in turns_of(session, 5)] for session in sessions]
    assert runs[0] == runs[1] and not set().union(*runs[0]) & set().union(*runs[-1])
    first_turn = set(runs[1][1])  # computed in the same way by all methods
    assert first_turn <= runs[4][1] and runs[2][1] <= runs[4][1]
    assert not runs[1][4] <= set().union(*runs[2], *runs[4])
    for session in sessions:
        session.reset()
    assert storage.stats()["blocks"] == 0


def test_harvested_rows_never_enter_the_exact_prefix(engine: Engine) -> None:
    exact = MemoryMethod("prefix", All(), Prefix(SIZE), Nothing(), NextLayer(), layout="append", grouping=GROUPING)
    approximate = open_session(engine, memart(2, storage=exact.storage))
    for a, b in zip(turns_of(open_session(engine, exact), 6), turns_of(approximate, 6), strict=True):
        assert close(a.logits, plain(engine, a))
        assert not close(b.logits, a.logits, 1e-3) or b.cold


@pytest.mark.parametrize("recompute", [Nothing(), MultiHop(Schedule("linear", 1.0))])
def test_a_lost_block_is_computed_again_if_all_blocks_are_needed(engine: Engine, recompute: Any) -> None:
    method = history() if isinstance(recompute, Nothing) else memart(400, recompute=recompute)
    session = open_session(engine, method)
    for number, prefill in enumerate(turns_of(session, 6)):
        if number < 4 or method.capabilities.exact:
            assert close(prefill.logits, plain(engine, prefill))
        if number == 3:
            missing = prefill.units[5]
            method.storage.delete(missing.identity)
            before = prefill.layout.rows
        if number == 4 and method.capabilities.exact:
            assert int(prefill.layout.fresh.nonzero()[0]) == missing.start and prefill.layout.rows > before


def test_a_lost_block_is_not_selected(engine: Engine) -> None:
    session = open_session(engine, memart(1))
    steps = turns_of(session, 6)
    next(steps)
    chosen_before = set()
    for prefill in steps:
        (choice, *_) = [unit.identity for unit in prefill.units if unit.tokens == SIZE]
        assert choice not in chosen_before
        chosen_before.add(choice)
        session.method.storage.delete(choice)


@pytest.mark.parametrize("per_layer", [False, True])
def test_a_budget_below_a_block_selects_nothing(engine: Engine, per_layer: bool) -> None:
    method = history(retrieval=Latent(top_k=SIZE - 1, unit="tokens", layers="each" if per_layer else "all"))
    for prefill in turns_of(open_session(engine, method), 4):
        assert all(unit.tokens < SIZE for unit in prefill.units if unit.hit)


def test_a_prompt_that_is_too_long_names_the_remedy(engine: Engine) -> None:
    session = open_session(engine, memart(200))
    with pytest.raises(CapacityError, match=r"500 positions; lower memory.retrieval.top_k=200 \(\d\d of the tokens"):
        for _ in turns_of(session, 60):
            pass


def test_multi_hop_recomputes_selected_rows(engine: Engine) -> None:
    for average in (1.0, 0.4):
        method = memart(recompute=MultiHop(Schedule("linear", average)), loading=LayerBalanced())
        for prefill in turns_of(open_session(engine, method), 5):
            assert average < 1 or close(prefill.logits, plain(engine, prefill))
        assert len(prefill.trace.hops) == (0 if average == 1.0 else LAYERS - 1)
        assert prefill.counts.recomputed_ratio > 0.2


def test_coupled_rows_keep_their_positions(engine: Engine) -> None:
    """Turns end with a complete block, and only early blocks are selected."""
    session = furnished(engine, memart(2, construction=History(cut="segment", positions="coupled")))
    transcript = 0
    for _ in range(6):
        prefill = session.prefill("q", QUERY)
        transcript = transcript or prefill.layout.query - len(CONTEXT)
        assert int(prefill.layout.positions[prefill.layout.query]) == len(CONTEXT) + transcript
        transcript += len(QUERY)
    pool_blocks = session._builder._pool.blocks
    assert len({s.name for s in pool_blocks}) == len(pool_blocks), "names depend on positions"


def test_a_full_storage_evicts_the_end_of_the_history(engine: Engine) -> None:
    block = engine.encode([(None, QUERY[:SIZE])])[0].nbytes
    session = open_session(engine, history(storage=Ram(budget_bytes=25 * block)))
    hits = [prefill.counts.hit_tokens for prefill in turns_of(session, 10)]
    assert min(hits[1:]) > 10 * SIZE, hits


def test_a_failed_harvest_raises_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    session = furnished(engine, memart(3))
    session.prefill("q", QUERY)
    engine.in_background(lambda: None).result()
    with monkeypatch.context() as broken:
        broken.setattr("memory.construction.harvested_pool.KeyBoxes.around", lambda *_: 1 / 0)
        session.prefill("q", QUERY)
        engine.in_background(lambda: None).result()
    with pytest.raises(ZeroDivisionError):
        session.prefill("q", QUERY)
    again = session.prefill("q", QUERY)
    assert again.counts.hit_tokens >= 3 * SIZE


@pytest.mark.parametrize("method", [history, memart])
def test_blocks_without_a_transcript_are_deleted(engine: Engine, method: Any) -> None:
    storage = Ram(budget_bytes=None)
    session = open_session(engine, method(storage=storage))
    for _ in range(3):
        list(turns_of(session, 3))
        session.prefill("q", QUERY)
        assert storage.stats()["blocks"] == len({pool_blocks.name for pool_blocks in session._builder._pool.blocks})
        session.reset(blocks=False)
    assert storage.stats()["blocks"] == 0


@pytest.mark.parametrize("construction", [History(block_size=SIZE), Prefix(block_size=SIZE)])
def test_a_long_temporary_prompt_keeps_the_transcript(engine: Engine, construction: Any) -> None:
    """A query that does not fit after the transcript is answered from the segments alone."""
    session = open_session(engine, history(construction=construction))
    list(turns_of(session, 4))
    temporary = session.prefill("q", QUERY, persist=False)
    room = engine.info.max_positions - temporary.layout.rows
    long = session.prefill("q", (7,) * (room + 50), persist=False)
    assert long.counts.hit_tokens == 0 and long.layout.rows < engine.info.max_positions
    assert close(long.logits, plain(engine, long))
    again = session.prefill("q", QUERY, persist=False)
    assert again.layout.token_ids.tolist() == temporary.layout.token_ids.tolist()
    assert again.counts.hit_tokens == temporary.counts.hit_tokens > 0


def test_an_empty_query_is_refused(engine: Engine) -> None:
    with pytest.raises(ConfigError, match="query_ids is empty"):
        open_session(engine, memart()).prefill("q", ())
