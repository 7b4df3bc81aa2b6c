"""Sessions over harvested history."""

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
from memory.recompute.multi_hop import MultiHop
from memory.recompute.none import Nothing
from memory.recompute.schedule import Schedule
from memory.retrieval.all import All
from memory.retrieval.latent import Latent
from memory.session import MemorySession
from memory.stages import Capabilities
from memory.storage.ram import Ram
from tests.memory.houses import encode_text, furnish
from tests.memory.sessions import CONTEXT, GROUPING, LAYERS, QUERY, close, episode, open_session, plain

SIZE = 4


def history(**stages: Any) -> MemoryMethod:
    parts = {
        "retrieval": All(),
        "construction": History(block_size=SIZE),
        "recompute": Nothing(),
        "loading": NextLayer(),
        "layout": "append",
        **stages,
    }
    return MemoryMethod("history", grouping=GROUPING, **parts)


def memart(top_k: int = 5, **stages: Any) -> MemoryMethod:
    return history(retrieval=Latent(top_k=top_k), **stages)


def per_layer() -> MemoryMethod:
    return history(retrieval=Latent(top_k=5, layers="each"))


def by_segment() -> MemoryMethod:
    return memart(construction=History(cut="segment"))


def answered(session: MemorySession, steps: int, seed: int = 0) -> Iterator[Prefill]:
    for prefill in episode(session, steps, seed):
        yield prefill
        session.append_turn([7])


def test_what_methods_promise() -> None:
    assert history().capabilities == Capabilities(exact=True, harvests=True)
    promised = Capabilities(exact=False, harvests=True, moves_blocks=True, latent=True)
    assert memart().capabilities == promised
    assert per_layer().capabilities == replace(promised, per_layer=True)


@pytest.mark.parametrize(
    ("method", "hits"), [(history, None), (memart, 5 * SIZE), (per_layer, 5 * SIZE), (by_segment, None)]
)
def test_only_new_rows_are_computed(engine: Engine, method: Any, hits: int | None) -> None:
    for number, prefill in enumerate(answered(open_session(engine, method()), 6)):
        counts, layout = prefill.counts, prefill.layout
        new = counts.prompt_tokens - len(CONTEXT) - counts.hit_tokens
        assert set(prefill.trace.active_rows) == {new}
        assert layout.positions.tolist() == list(range(layout.rows))
        whole = sum(unit.tokens for unit in prefill.units if unit.hit and unit.tokens >= SIZE)
        assert hits is None or whole == hits * (number > 0)


@pytest.mark.parametrize("method", [history, memart, per_layer])
def test_whatever_is_not_computed_is_loaded(engine: Engine, method: Any) -> None:
    """Rows that each layer fills for itself, too: their bytes count, and their time is loading."""
    for prefill in answered(open_session(engine, method()), 4):
        counts, trace = prefill.counts, prefill.trace
        assert counts.loaded_bytes == counts.hit_tokens * engine.info.bytes_per_token
        spent = 1e3 * sum(load.end - load.start for load in trace.loads)
        assert prefill.timings.load >= 0.99 * spent
        for layer in range(LAYERS) if counts.hit_tokens else ():
            assert any(load.first <= layer < load.last for load in trace.loads)


def test_what_a_layer_wants_travels_ahead(engine: Engine) -> None:
    """The layer before tells what; only what it did not name is fetched when the layer's own choice is known."""
    with TransformersEngine(engine.model, "thread") as ahead:
        pairs = zip(
            answered(open_session(engine, per_layer()), 5), answered(open_session(ahead, per_layer()), 5), strict=True
        )
        for inline, prefill in pairs:
            assert torch.equal(prefill.logits, inline.logits) and prefill.trace.slots == inline.trace.slots
            wanted = prefill.trace.slots
            if not prefill.counts.hit_tokens:
                continue
            size = 2 * engine.info.kv_heads * SIZE * engine.info.head_dim * engine.info.dtype.itemsize
            surprises = [len(wanted[0]), *(len(set(new) - set(old)) for old, new in pairwise(wanted))]
            guesses = [len(chosen) for chosen in wanted[:-1]]
            moved = [load.nbytes for load in prefill.trace.loads if not load.runs]  # runs are what every layer reads
            assert sorted(moved) == sorted(size * count for count in surprises + guesses)


def test_the_rest_of_a_turn_is_in_every_prompt_and_in_the_next_block(engine: Engine) -> None:
    session = open_session(engine, memart(1))
    furnish(session.store)
    told: list[int] = []
    for _ in range(7):
        prefill = session.prefill("q", QUERY)
        ids, fresh = prefill.layout.token_ids, prefill.layout.fresh
        rest = len(told) % SIZE
        first = int(fresh.nonzero()[0])
        assert ids[first - rest : first].tolist() == told[len(told) - rest :]
        assert first == len(CONTEXT) + min(len(told) // SIZE, 1) * SIZE + rest
        told += ids[first:].tolist()


def test_a_block_may_be_a_segment_or_a_turn(engine: Engine) -> None:
    session = open_session(engine, memart(400, construction=History(cut="segment")))
    for prefill in answered(session, 4):
        assert close(prefill.logits, plain(engine, prefill))
        for unit in prefill.units:
            assert not unit.hit or len(unit.segments) == 1


@pytest.mark.parametrize("method", [history, memart, per_layer])
def test_whether_one_waits_for_the_harvest_changes_nothing(engine: Engine, method: Any) -> None:
    waiting, hasty = open_session(engine, method()), open_session(engine, method())
    for a, b in zip(answered(waiting, 6), answered(hasty, 6), strict=True):
        assert torch.equal(a.logits, b.logits)
        assert [unit.identity for unit in a.units] == [unit.identity for unit in b.units]
        engine.later(lambda: None).result()  # everything in the background is done
        scores = [session.score(p, [[5, 6], [5, 7, 8]]).scores for session, p in ((waiting, a), (hasty, b))]
        assert torch.equal(*scores)


@pytest.mark.parametrize("method", [history, memart])
def test_a_plan_on_the_worker_does_not_wait_for_the_workers_own_queue(engine: Engine, method: Any) -> None:
    """As an agent's does: what the turn before left to the background has not begun when the next prompt wants it."""
    session, twin = open_session(engine, method()), open_session(engine, method())
    for one in (session, twin):
        furnish(one.store)

    def plans() -> list[torch.Tensor]:
        return [session.prefill("q", QUERY).logits for _ in range(3)]

    for found in engine.run(plans):
        assert torch.equal(found, twin.prefill("q", QUERY).logits)
        engine.later(lambda: None).result()


def test_what_is_scored_and_said_behind_a_prompt_is_not_harvested(engine: Engine) -> None:
    """A background job held up until after scoring and decoding, which grow the cache, sees the prompt's rows."""
    quiet, busy = open_session(engine, memart()), open_session(engine, memart())
    for a, b in zip(answered(quiet, 5), answered(busy, 5), strict=True):
        assert torch.equal(a.logits, b.logits)
        busy.score(b, [[5, 6 + i, *[9] * 40] for i in range(12)])
        busy.generate(b, 3)
        busy.generate(b, 2, keep=True)


def test_reset_forgets(engine: Engine) -> None:
    for method in (history(), memart(), per_layer(), by_segment()):
        session = open_session(engine, method)
        first = [prefill.logits for prefill in answered(session, 4)]
        session.reset()  # with a harvest under way
        assert method.storage.stats()["blocks"] == 0
        for prefill, expected in zip(answered(session, 4), first, strict=True):
            assert torch.equal(prefill.logits, expected)
            assert prefill.cold == (prefill.counts.hit_tokens == 0)
            assert not prefill.cold or method.storage.stats()["blocks"] == 0, "what was under way came to nothing"


def test_blocks_are_named_by_agent_and_by_what_their_rows_saw(engine: Engine) -> None:
    """All in one storage: equal histories of one namespace are the same blocks, anything else is apart."""
    storage = Ram()
    methods = [memart(storage=storage), memart(4, storage=storage), per_layer(), history(storage=storage)]
    methods[2] = replace(methods[2], storage=storage)
    opened = [open_session(engine, method) for method in (methods[0], *methods)]
    opened.append(open_session(engine, methods[0], namespace="other"))
    runs = [[{u.identity for u in p.units if u.identity} for p in answered(session, 5)] for session in opened]
    assert runs[0] == runs[1]
    assert not set().union(*runs[0]) & set().union(*runs[-1])
    first_turn = set(runs[1][1])  # all were computed in one and the same way
    assert first_turn <= runs[4][1] and runs[2][1] <= runs[4][1]
    assert not runs[1][4] <= set().union(*runs[2], *runs[4])
    for session in opened:
        session.reset()
    assert storage.stats()["blocks"] == 0


def test_harvested_rows_never_enter_the_exact_prefix(engine: Engine) -> None:
    """Law 9: MemArt and a prefix cache tell the same transcript into one storage; the prefix stays exact."""
    exact = MemoryMethod("prefix", All(), Prefix(SIZE), Nothing(), NextLayer(), layout="append", grouping=GROUPING)
    other = open_session(engine, memart(2, storage=exact.storage))
    for a, b in zip(answered(open_session(engine, exact), 6), answered(other, 6), strict=True):
        assert close(a.logits, plain(engine, a))
        assert not close(b.logits, a.logits, 1e-3) or b.cold


@pytest.mark.parametrize("recompute", [Nothing(), MultiHop(Schedule("linear", 1.0))])
def test_a_lost_block_is_computed_anew_where_all_have_to_be_in(engine: Engine, recompute: Any) -> None:
    method = history() if isinstance(recompute, Nothing) else memart(400, recompute=recompute)
    session = open_session(engine, method)
    for number, prefill in enumerate(answered(session, 6)):
        if number < 4 or method.capabilities.exact:
            assert close(prefill.logits, plain(engine, prefill))
        if number == 3:
            lost = prefill.units[5]
            method.storage.delete(lost.identity)
            before = prefill.layout.rows
        if number == 4 and method.capabilities.exact:
            assert int(prefill.layout.fresh.nonzero()[0]) == lost.start
            assert prefill.layout.rows > before


def test_a_lost_block_can_be_chosen_no_more(engine: Engine) -> None:
    session = open_session(engine, memart(1))
    steps = answered(session, 6)
    next(steps)
    seen = set()
    for prefill in steps:
        (chosen, *_) = [unit.identity for unit in prefill.units if unit.tokens == SIZE]
        assert chosen not in seen
        seen.add(chosen)
        session.method.storage.delete(chosen)


@pytest.mark.parametrize("per_layer", [False, True])
def test_room_for_less_than_a_block_chooses_nothing(engine: Engine, per_layer: bool) -> None:
    method = history(retrieval=Latent(top_k=SIZE - 1, unit="tokens", layers="each" if per_layer else "all"))
    for prefill in answered(open_session(engine, method), 4):
        assert all(unit.tokens < SIZE for unit in prefill.units if unit.hit)


def test_a_prompt_that_is_too_long_names_the_remedy(engine: Engine) -> None:
    session = open_session(engine, memart(200))
    with pytest.raises(CapacityError, match=r"500 positions; lower memory.retrieval.top_k=200 \(\d\d of the tokens"):
        for _ in answered(session, 60):
            pass


def test_segments_and_turns_are_told_once(engine: Engine) -> None:
    session = open_session(engine, memart())
    furnish(session.store)
    counts = [session.prefill("q", QUERY).counts.fresh_tokens for _ in range(3)]
    assert counts[1:] == [len(QUERY)] * 2
    session.append_turn([7])
    moved = "agent at cabinet_1 holding nothing\n"
    session.store.put("agent", "agent", moved)
    prefill = session.prefill("q", QUERY)
    assert prefill.layout.token_ids[prefill.layout.fresh].tolist() == [
        7,
        *encode_text("\n"),
        *encode_text(moved),
        *QUERY,
    ]


# -- compositions no paper has -----------------------------------------------------------------------------------------


def test_multi_hop_repairs_what_was_chosen(engine: Engine) -> None:
    """Recomputing every chosen row is the plain forward of the chosen tokens; less is in between."""
    for average in (1.0, 0.4):
        method = memart(recompute=MultiHop(Schedule("linear", average)), loading=LayerBalanced())
        for prefill in answered(open_session(engine, method), 5):
            assert average < 1 or close(prefill.logits, plain(engine, prefill))
        assert len(prefill.trace.hops) == (0 if average == 1.0 else LAYERS - 1)
        assert prefill.counts.recomputed_ratio > 0.2


def test_coupled_rows_stand_where_they_were_even_if_nothing_stands_before_the_query(engine: Engine) -> None:
    """Turns that end with a whole block, of which only early ones are chosen."""
    session = open_session(engine, memart(2, construction=History(cut="segment", positions="coupled")))
    furnish(session.store)
    told = 0
    for _ in range(6):
        prefill = session.prefill("q", QUERY)
        told = told or prefill.layout.query - len(CONTEXT)
        assert int(prefill.layout.positions[prefill.layout.query]) == len(CONTEXT) + told
        told += len(QUERY)
    kept = session._builder._pool.blocks
    assert len({one.name for one in kept}) == len(kept), "the same turn told elsewhere has other keys and values"


def test_a_full_storage_keeps_the_beginning(engine: Engine) -> None:
    """Nothing behind a gap can be used, so what is dropped must be the end."""
    block = engine.encode([(None, QUERY[:SIZE])])[0].nbytes
    session = open_session(engine, history(storage=Ram(budget_bytes=25 * block)))
    hits = [prefill.counts.hit_tokens for prefill in answered(session, 10)]
    assert min(hits[1:]) > 10 * SIZE, hits


def test_a_harvest_that_failed_is_told_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    session = open_session(engine, memart(3))
    furnish(session.store)
    session.prefill("q", QUERY)
    engine.later(lambda: None).result()
    with monkeypatch.context() as broken:
        broken.setattr("memory.construction.harvested_pool.KeyBoxes.around", lambda *_: 1 / 0)
        session.prefill("q", QUERY)
        engine.later(lambda: None).result()
    with pytest.raises(ZeroDivisionError):
        session.prefill("q", QUERY)
    again = session.prefill("q", QUERY)
    assert again.counts.hit_tokens >= 3 * SIZE


@pytest.mark.parametrize("method", [history, memart])
def test_what_can_never_be_found_again_is_let_go(engine: Engine, method: Any) -> None:
    storage = Ram(budget_bytes=None)
    session = open_session(engine, method(storage=storage))
    for _ in range(3):
        list(answered(session, 3))
        session.prefill("q", QUERY)
        assert storage.stats()["blocks"] == len({kept.name for kept in session._builder._pool.blocks})
        session.reset(blocks=False)
    assert storage.stats()["blocks"] == 0


@pytest.mark.parametrize("construction", [History(block_size=SIZE), Prefix(block_size=SIZE)])
def test_a_long_question_aside_leaves_the_transcript(engine: Engine, construction: Any) -> None:
    """It does not fit behind the transcript, so it is asked behind the segments alone."""
    session = open_session(engine, history(construction=construction))
    list(answered(session, 4))
    aside = session.prefill("q", QUERY, lasting=False)
    room = engine.info.max_positions - aside.layout.rows
    long = session.prefill("q", (7,) * (room + 50), lasting=False)
    assert long.counts.hit_tokens == 0 and long.layout.rows < engine.info.max_positions
    assert close(long.logits, plain(engine, long))
    again = session.prefill("q", QUERY, lasting=False)
    assert again.layout.token_ids.tolist() == aside.layout.token_ids.tolist()
    assert again.counts.hit_tokens == aside.counts.hit_tokens > 0


def test_nothing_asked_is_a_sentence(engine: Engine) -> None:
    with pytest.raises(ConfigError, match="query_ids is empty"):
        open_session(engine, memart()).prefill("q", ())


def test_knobs_of_history_are_checked() -> None:
    for knobs in ({"block_size": 0}, {"cut": "word"}, {"positions": "lost"}):
        with pytest.raises(ConfigError, match=next(iter(knobs))):
            History(**knobs)
