"""Sessions on a tiny random model in float64, against plain forwards of the same tokens."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import count
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from keep_agent.errors import CapacityError, ConfigError
from memory.engine.base import Engine
from memory.engine.transfer.executor import KVTransfer
from memory.loading.next_layer import NextLayer
from memory.loading.serial import Serial
from memory.method import MemoryMethod
from memory.retrieval.all import All
from memory.retrieval.embedding import Embedding
from memory.retrieval.latent import Latent
from memory.segments.sentence_encoder import HashedNgrams
from memory.storage.ram import Ram
from memory.storage.tiers import Tiers
from tests.memory.houses import VOCABULARY, encode_text, furnish
from tests.memory.sessions import (
    APPENDING,
    CONTEXT,
    EDITS,
    LAYERS,
    METHODS,
    QUERY,
    blocks,
    check_present,
    close,
    edit,
    episode,
    full,
    history,
    keep,
    memart,
    open_session,
    plain,
    prefix,
    reuse,
    segments,
    sparsex,
    streaming,
    turns,
)
from tests.waiting import FakeTime

# -- the same prompt for all, exact where it must be -----------------------------------------------------------------


@pytest.mark.parametrize("method", [full, prefix, history])
def test_exact_methods_equal_the_plain_forward(engine: Engine, method: object) -> None:
    hits = 0
    for prefill in episode(open_session(engine, method()), 12):
        assert close(prefill.logits, plain(engine, prefill))
        hits += prefill.counts.hit_tokens
    assert (hits > 0) == (method is not full)


def test_recomputing_every_segment_equals_the_plain_forward(engine: Engine) -> None:
    for prefill in episode(open_session(engine, keep(1.0)), 5):
        assert close(prefill.logits, plain(engine, prefill))
        reused, memory = prefill.layout.reused.sum().item(), prefill.counts.memory_tokens
        assert prefill.counts.recomputed_ratio == reused / memory < 1.0, "the first unit is exact as it is"


@pytest.mark.parametrize(("context", "exact"), [("system", True), ("bos", False), ("none", False)])
def test_the_first_unit_is_exact_where_it_saw_the_whole_context(engine: Engine, context: str, exact: bool) -> None:
    for prefill in episode(open_session(engine, replace(keep(), context=context)), 3):
        first, *others = prefill.layout.placements
        assert first.exact == exact and not any(p.exact for p in others)


@pytest.mark.parametrize("method", METHODS)
def test_text_in_front_of_the_memory_is_fresh_and_read_first(engine: Engine, method: object) -> None:
    session = open_session(engine, method())
    furnish(session.store)
    session.prefill("put mug_1", QUERY)
    start, front = len(CONTEXT), encode_text("look for mug_1\n")
    for _ in range(2):
        prefill = session.prefill("put mug_1", QUERY, front_ids=front)
        assert prefill.layout.token_ids[start : start + len(front)].tolist() == list(front)
        assert prefill.layout.fresh[start : start + len(front)].all(), "it is never stored"
        assert not prefill.units[0].hit
        if session.method.capabilities.exact:
            assert close(prefill.logits, plain(engine, prefill))


def test_all_methods_choose_the_same_prompt(engine: Engine) -> None:
    runs = [list(episode(open_session(engine, method()), 14)) for method in METHODS]
    for step in zip(*runs, strict=True):
        assert len({tuple(prefill.layout.token_ids.tolist()) for prefill in step}) == 1
        assert len({tuple(segments(prefill)) for prefill in step}) == 1
        assert all(prefill.flips == step[0].flips for prefill in step)
        assert step[0].layout.token_ids.tolist()[:3] == list(CONTEXT)
        assert segments(step[0])[-1] == "agent"
    assert any(prefill.flips for prefill in runs[0])


def test_approximate_methods_differ_from_the_plain_forward(engine: Engine) -> None:
    """Otherwise the tests above would prove nothing."""
    for prefill in episode(open_session(engine, reuse()), 3):
        assert not close(prefill.logits, plain(engine, prefill), 1e-3)


@pytest.mark.parametrize("loading", [Serial(), NextLayer()])
def test_loading_never_changes_the_result(engine: Engine, loading: object) -> None:
    balanced = episode(open_session(engine, keep()), 6)
    other = episode(open_session(engine, replace(keep(), loading=loading)), 6)
    for a, b in zip(balanced, other, strict=True):
        assert torch.equal(a.logits, b.logits)
        assert a.counts == b.counts


# -- what is served, and what never is -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [reuse, keep, blocks])
@given(steps=EDITS)
@settings(max_examples=12)
def test_a_stale_version_is_never_served(engine: Engine, method: object, steps: list) -> None:
    session = open_session(engine, method())
    furnish(session.store, cabinets=2, objects=6)
    for edits in steps:
        edit(session, edits)
        prefill = session.prefill("mug_1", QUERY)
        check_present(session, prefill)
        context = engine.encode([(None, CONTEXT)])[0]
        units = [p.unit.token_ids for p in prefill.layout.placements]
        for placed, truth in zip(
            prefill.layout.placements, engine.encode([(context, ids) for ids in units]), strict=True
        ):
            block = placed.block or session.method.storage.get(placed.fused)
            assert torch.allclose(block.k, truth.k) and torch.allclose(block.v, truth.v)
        session.advance()


@pytest.mark.parametrize("other", [reuse, sparsex])
@given(steps=EDITS)
@settings(max_examples=12)
def test_approximate_rows_never_enter_the_exact_prefix(engine: Engine, other: object, steps: list) -> None:
    """Both methods rest in one storage; the prefix stays exact whatever the other one put there."""
    exact = prefix()
    both = [open_session(engine, method) for method in (exact, replace(other(), storage=exact.storage))]
    for session in both:
        furnish(session.store, cabinets=2, objects=6)
    for edits in steps:
        for session in both:
            for number, place in edits:
                session.store.put(f"mug_{number}", "object", f"mug mug_{number} {place}\n")
        both[1].prefill("mug_1", QUERY)
        prefill = both[0].prefill("mug_1", QUERY)
        assert close(prefill.logits, plain(engine, prefill))
        for session in both:
            session.advance()


def test_a_text_that_returns_hits_again(engine: Engine) -> None:
    session = open_session(engine, reuse())
    session.store.put("cabinet_1", "receptacle", "cabinet cabinet_1 closed\n")
    rates = []
    for state in ("closed", "open", "closed", "open"):
        session.store.put("cabinet_1", "receptacle", f"cabinet cabinet_1 {state}\n")
        rates.append(session.prefill("q", QUERY).counts.kv_hit_rate)
    assert rates == [0, 0, 1, 1]


def test_sessions_share_blocks_within_a_namespace_only(engine: Engine) -> None:
    method = reuse()
    one, two, other = (open_session(engine, method, namespace=name) for name in ("a", "a", "b"))
    for session in (one, two, other):
        furnish(session.store)
    assert one.prefill("q", QUERY).counts.kv_hit_rate == 0
    assert two.prefill("q", QUERY).counts.kv_hit_rate == 1
    assert other.prefill("q", QUERY).counts.kv_hit_rate == 0
    one.reset()
    assert two.prefill("q", QUERY).counts.kv_hit_rate == 1
    two.reset()
    other.reset()
    assert method.storage.stats()["blocks"] == 0


def test_reset_forgets_everything_but_the_context(engine: Engine) -> None:
    for method in (*METHODS, *APPENDING):
        session = open_session(engine, method())
        first = next(episode(session, 1))
        session.reset()
        assert len(session.store) == session.store.step == len(session.store.history) == 0
        again = next(episode(session, 1))
        assert torch.equal(first.logits, again.logits)
        assert again.cold
        assert again.counts.hit_tokens == 0
        goes_on = method().construction.capabilities.keeps_cache
        kept = again.counts.prefix_tokens if goes_on else 0  # whole blocks of it, as rows of the prompt
        context = 0 if method is full or goes_on else len(CONTEXT)
        assert first.counts.encoded_token_layers - again.counts.encoded_token_layers == context * LAYERS
        assert first.counts.fresh_tokens - again.counts.fresh_tokens == context + kept


# -- counts and times ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "hit", "encoded", "lost"),
    [(full, 0, 0, 0), (reuse, 8, 5, 4), (keep, 8, 5, 4), (prefix, 4, 0, 6), (sparsex, 8, 0, 4)],
)
def test_counts_after_one_change(engine: Engine, method: object, hit: int, encoded: int, lost: int) -> None:
    """Three segments of 4 tokens each; the second grows to 5, of which the first two are as before."""
    session = open_session(engine, method())
    session.store.put("cabinet_1", "receptacle", "cabinet cabinet_1 closed\n")
    session.store.put("mug_1", "object", "mug mug_1 hand\n")
    session.store.put("agent", "agent", "agent at start\n")
    session.prefill("q", QUERY)
    session.advance()
    session.store.put("mug_1", "object", "mug mug_1 in cabinet_1\n")
    counts = session.prefill("q", QUERY).counts
    assert (counts.layers, counts.memory_tokens) == (LAYERS, 13)
    assert counts.prompt_tokens == len(CONTEXT) + 13 + len(QUERY)
    assert counts.hit_tokens == hit
    assert counts.encoded_token_layers == encoded * LAYERS
    assert counts.invalidated_tokens == lost
    context = len(CONTEXT) if method is full else 0
    assert counts.fresh_tokens == context + 13 - hit + len(QUERY)


def test_ratios_of_the_methods(engine: Engine) -> None:
    last = {method: list(episode(open_session(engine, method(), budget=40), 9))[-1] for method in METHODS}
    ratio = {method: prefill.counts.computed_ratio for method, prefill in last.items()}
    assert ratio[full] == 1.0
    assert last[full].counts.recomputed_ratio == 0.0  # nothing was stored: its rows are fresh
    assert last[full].counts.fresh_tokens == last[full].counts.prompt_tokens
    assert last[reuse].counts.recomputed_ratio == 0.0
    assert ratio[reuse] == len(QUERY) / last[reuse].counts.prompt_tokens
    assert ratio[reuse] < ratio[keep] < 0.6
    assert 0.2 < last[keep].counts.recomputed_ratio < 0.4
    assert last[reuse].counts.loaded_bytes > last[keep].counts.loaded_bytes > 0 == last[full].counts.loaded_bytes
    trace = last[keep].trace
    assert trace.active_rows == sorted(trace.active_rows, reverse=True)
    falls = [layer for layer in range(LAYERS - 1) if trace.active_rows[layer + 1] < trace.active_rows[layer]]
    assert [hops.layer for hops in trace.hops] == falls != []


def test_units_tell_where_their_rows_came_from(engine: Engine) -> None:
    session = open_session(engine, keep())
    steps = list(episode(session, 9))
    assert steps[0].cold
    assert not any(prefill.cold for prefill in steps[1:])
    assert not any(unit.hit for unit in steps[0].units)
    last = steps[-1]
    assert {unit.kind for unit in last.units} == {"static_group", "segment"}
    row = len(CONTEXT)
    for unit in last.units:
        assert unit.start == row
        assert unit.identity
        row += unit.tokens
    assert row == last.layout.query
    assert sum(unit.tokens for unit in last.units if unit.hit) == last.counts.hit_tokens


def test_parts_of_the_time_add_up(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part is what its work takes, whatever it is called within; a look at the clock takes a microsecond."""
    clock, spent = FakeTime(tick=1e-6), Counter[str]()
    monkeypatch.setattr(time, "perf_counter", clock)

    def slow(owner: object, name: str, part: str, seconds: float) -> None:
        plain = getattr(owner, name)

        def slowly(*given: Any, **named: Any) -> Any:
            clock.sleep(seconds)
            spent[part] += seconds
            return plain(*given, **named)

        monkeypatch.setattr(owner, name, slowly)

    session = open_session(engine, keep())
    slow(session.store.graph, "update", "update", 1)
    slow(HashedNgrams, "encode", "embed", 2)
    slow(engine, "encode", "encode", 3)
    slow(Embedding, "select", "retrieve", 4)
    slow(KVTransfer, "move", "load", 5)
    slow(engine, "prefill", "prefill", 6)
    began, seen = clock.now, set()
    for prefill in episode(session, 3):
        parts = asdict(prefill.timings)
        assert parts == pytest.approx({part: 1e3 * spent[part] for part in parts}, abs=1)
        assert prefill.timings.total + prefill.after_ms == pytest.approx(1e3 * (clock.now - began), abs=1)
        seen |= spent.keys()
        spent.clear()
        began = clock.now
    assert seen == {"update", "embed", "encode", "retrieve", "load", "prefill"}


# -- context, transcript, and the edges ------------------------------------------------------------------------------


def test_context_policies_are_told_apart(engine: Engine) -> None:
    logits = []
    storage = reuse().storage
    for policy in ("none", "bos", "system"):
        session = open_session(engine, replace(reuse(), context=policy, storage=storage))
        session.store.put("mug_1", "object", "mug mug_1 hand\n")
        prefill = session.prefill("q", QUERY)
        assert prefill.counts.hit_tokens == 0
        logits.append(prefill.logits)
        if policy == "system":  # the only unit has seen all that stands before it
            assert close(prefill.logits, plain(engine, prefill))
    assert not close(logits[0], logits[1], 1e-3)
    assert not close(logits[1], logits[2], 1e-3)


@pytest.mark.parametrize("method", [reuse, prefix])
def test_segments_may_be_forgotten_without_their_blocks(engine: Engine, method: object) -> None:
    session = open_session(engine, method())
    for keeps in (True, False):
        furnish(session.store, 8)
        first = session.prefill("where is mug_1", QUERY)
        session.reset(blocks=not keeps)
        assert not len(session.store)
        furnish(session.store, 8)
        again = session.prefill("where is mug_1", QUERY)
        assert torch.equal(again.layout.token_ids, first.layout.token_ids)
        assert (again.counts.hit_tokens > 0, again.cold) == (keeps, not keeps)
        session.reset()


@pytest.mark.parametrize("method", [*METHODS, *APPENDING])
def test_what_is_asked_aside_leaves_no_trace(engine: Engine, method: object) -> None:
    session, other = (open_session(engine, method()) for _ in range(2))
    for one in (session, other):
        furnish(one.store, 8)
        one.prefill("where is mug_1", QUERY)
    aside = session.prefill("where is mug_2", encode_text("where mug_2"), lasting=False)
    assert torch.isfinite(aside.logits).all()
    again, expected = (one.prefill("where is mug_1", QUERY) for one in (session, other))
    assert torch.equal(again.layout.token_ids, expected.layout.token_ids)
    assert close(again.logits, expected.logits)
    assert again.counts.hit_tokens == expected.counts.hit_tokens


@pytest.mark.parametrize("method", [*METHODS, *APPENDING])
def test_what_is_asked_aside_moves_no_counter(engine: Engine, method: object) -> None:
    session, other = (open_session(engine, method()) for _ in range(2))
    for place in ("hand", "table", "floor"):
        for one in (session, other):
            furnish(one.store, 8)
            one.advance()
            one.store.put("mug_1", "object", f"mug mug_1 {place}\n")
        session.prefill("where is mug_2", encode_text("where mug_2"), lasting=False)
        again, expected = (one.prefill("where is mug_1", QUERY) for one in (session, other))
        assert again.counts.invalidated_tokens == expected.counts.invalidated_tokens
        assert again.cold == expected.cold == (place == "hand")


@pytest.mark.parametrize("method", METHODS)
def test_what_is_asked_whole_reuses_only_rows_of_prompts(engine: Engine, method: object) -> None:
    session, other = (open_session(engine, made()) for made in (method, full))
    for one in (session, other):
        furnish(one.store, 8)
    asked = session.prefill("where is mug_1", QUERY, lasting=False, whole=True)
    assert close(asked.logits, other.prefill("where is mug_1", QUERY).logits)
    assert asked.cold and asked.counts.hit_tokens == 0
    harvests = method().construction.capabilities.harvests
    following = session.prefill("where is mug_1", QUERY)
    assert (following.counts.hit_tokens > 0, following.cold) == (harvests, not harvests)
    again = session.prefill("where is mug_1", QUERY, lasting=False, whole=True)
    assert (again.counts.hit_tokens > 0) == harvests
    assert harvests or close(again.logits, asked.logits)


def test_a_prompt_beyond_the_models_positions_is_refused(engine: Engine) -> None:
    session = open_session(engine, replace(full(), retrieval=All()))
    furnish(session.store, objects=120)
    with pytest.raises(CapacityError, match="the model's 500 positions; lower prompt.budget"):
        session.prefill("q", QUERY)


def test_what_is_said_behind_a_prompt_takes_positions_too(engine: Engine) -> None:
    session = open_session(engine, full())
    limit = engine.info.max_positions
    prefill = session.prefill("q", [5] * (limit - len(CONTEXT) - 2))
    assert prefill.layout.rows == limit - 2
    assert session.score(prefill, [[1], [2, 3, 4]]).scores.numel() == 2
    with pytest.raises(CapacityError, match=f"3 more behind a prompt of {limit - 2} do not fit .* lower prompt"):
        session.score(prefill, [[1], [2, 3, 4, 5]])
    assert len(session.generate(prefill, 9)) == len(session.generate(prefill, 9, keep=True)) == 2
    with pytest.raises(CapacityError, match="1 more behind"):
        session.generate(prefill, 1)


@pytest.mark.parametrize("method", [reuse, keep])
def test_what_no_prompt_has_room_for_is_not_encoded(engine: Engine, method: Callable[[], MemoryMethod]) -> None:
    """Neither ahead nor by the prompt that is refused."""
    storage = Ram()
    session = open_session(engine, replace(method(), retrieval=All(), storage=storage))
    session.store.put("mug_1", "object", "mug_1 hot " * 20 + "\n")
    session.store.put("mug_2", "object", "mug_2 hot " * 400 + "\n")
    session.store.put("mug_3", "object", "mug_3 hot\n")
    session.update()
    with pytest.raises(CapacityError, match="the model's 500 positions"):
        session.prefill("q", QUERY)
    assert storage.stats()["blocks"] == 0
    encoded, left = session.prepare("q", 10_000)
    assert 20 < encoded < 500 and left == 0
    assert storage.stats()["blocks"] == 1


def test_empty_memory_and_bad_settings(engine: Engine) -> None:
    for method in (*METHODS, *APPENDING):
        prefill = open_session(engine, method()).prefill("q", QUERY)
        assert close(prefill.logits, plain(engine, prefill))
        assert prefill.counts.kv_hit_rate == prefill.counts.recomputed_ratio == 0
    with pytest.raises(ConfigError, match="budget=0"):
        open_session(engine, full(), budget=0)
    with pytest.raises(ConfigError, match="context=bos"):
        open_session(engine, replace(reuse(), context="bos"), context_ids=())
    with pytest.raises(ConfigError, match="append_turn"):
        open_session(engine, full()).append_turn([1])


def test_candidates_and_text_behind_a_prompt(engine: Engine) -> None:
    session = open_session(engine, replace(full(), retrieval=All()))
    prefill = next(episode(session, 1))
    (first,) = session.generate(prefill, 1)
    assert first == int(prefill.logits.argmax())
    prefill = session.prefill("q", QUERY)
    scores = session.score(prefill, [[first], [(first + 1) % VOCABULARY]]).scores
    assert int(scores.argmax()) == 0


def test_dropped_rows_keep_their_positions(engine: Engine) -> None:
    """What is decoded behind a prompt with dropped rows ends with the model's positions, too."""
    session, limit = open_session(engine, streaming()), engine.info.max_positions
    furnish(session.store)
    for _ in range(3):
        prefill = session.prefill("put mug_1 in cabinet_2", QUERY)
        session.append_turn(QUERY)
        session.advance()
    prefill = session.prefill("put mug_1 in cabinet_2", QUERY)
    assert prefill.cache.length < prefill.cache.next_position
    session.generate(prefill, 10 * limit, keep=True)
    assert prefill.cache.next_position == limit


def test_what_memart_was_told_outlasts_any_number_of_prompts(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody tells it again: only the storage's budget may forget it."""
    monkeypatch.setattr("memory.kv_cache.block_lease.UNUSED", 4)
    session = open_session(engine, replace(memart(), retrieval=Latent(top_k=2)))
    furnish(session.store)
    for _ in range(12):
        session.prefill("next", QUERY)
        session.append_turn(encode_text("wait\n"))
        session.advance()
    session.prefill("next", QUERY)
    assert session._builder._pool.blocks[0].start == 0


def test_a_block_that_expires_in_mid_prompt_is_done_without(engine: Engine) -> None:
    ticks = count()
    storage = Tiers(
        [Ram()], ttl_seconds=2.0, clock=lambda: 0.01 * next(ticks)
    )  # time passes while a prompt is computed
    session = open_session(engine, replace(memart(), retrieval=Latent(top_k=6, layers="each"), storage=storage))
    furnish(session.store)
    for _ in range(12):
        session.prefill("put mug_1 in cabinet_2", QUERY)
        session.append_turn(encode_text("open cabinet_1\n"))
        session.advance()


def test_text_in_front_stays_where_a_transcript_begins_anew(engine: Engine) -> None:
    session, front, again = open_session(engine, turns()), encode_text("look for mug_1\n"), [*QUERY, *QUERY]
    furnish(session.store)
    anew = 0
    while not anew:
        prefill = session.prefill("mug", QUERY, restart=lambda: again, front_ids=front)
        told = prefill.layout.token_ids.tolist()
        anew = told[-len(again) :] == again
        assert told[-len(front) - len(again if anew else QUERY) :][: len(front)] == list(front)
        session.append_turn([5] * 40)
