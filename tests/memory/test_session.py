"""Sessions on a tiny random model in float64, compared with plain forwards of the same tokens."""

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
from memory.construction.segments import Segments
from memory.construction.static_dynamic import StaticDynamic
from memory.engine.base import Engine
from memory.engine.transfer.executor import KVTransfer
from memory.method import MemoryMethod
from memory.retrieval.all import All
from memory.retrieval.embedding import Embedding
from memory.retrieval.latent import Latent
from memory.segments.sentence_encoder import HashedNgrams
from memory.stages import Storage
from memory.storage.quantized import Quantized
from memory.storage.ram import Ram
from memory.storage.tiers import Tiers
from tests.memory import sessions as samples
from tests.memory.houses import VOCABULARY, encode_text, furnish
from tests.memory.sessions import CONTEXT, METHODS, QUERY, close, episode, full, furnished, open_session, plain, reuse
from tests.waiting import FakeTime

STORAGES: dict[str, Callable[[], Storage]] = {
    "ram": Ram,
    "small": lambda: Ram(budget_bytes=60_000),  # less than a house needs
    "packed": lambda: Quantized(bits=8, group=8, keys="channel"),
    "tiers": lambda: Tiers([Ram(budget_bytes=30_000), Ram(budget_bytes=60_000)]),
}


@pytest.mark.parametrize("method", [full, samples.prefix, samples.history])
def test_exact_methods_equal_the_plain_forward(engine: Engine, method: Any) -> None:
    hits = 0
    for prefill in episode(open_session(engine, method()), 12):
        assert close(prefill.logits, plain(engine, prefill))
        hits += prefill.counts.hit_tokens
    assert (hits > 0) == (method is not full)


@pytest.mark.parametrize("construction", [StaticDynamic(), Segments(block_size=4)])
def test_recomputing_every_segment_equals_the_plain_forward(engine: Engine, construction: Any) -> None:
    for prefill in episode(open_session(engine, replace(samples.keep(1.0), construction=construction)), 5):
        assert close(prefill.logits, plain(engine, prefill))
        if isinstance(construction, Segments):
            continue
        reused, memory = prefill.layout.reused.sum().item(), prefill.counts.memory_tokens
        assert prefill.counts.recomputed_ratio == reused / memory < 1.0, "the first unit is exact without recomputation"


@pytest.mark.parametrize(("context", "exact"), [("system", True), ("bos", False), ("none", False)])
def test_the_first_unit_is_exact_after_the_whole_context(engine: Engine, context: str, exact: bool) -> None:
    for prefill in episode(open_session(engine, replace(samples.keep(), context=context)), 3):
        first, *later = prefill.layout.placements
        assert first.exact == exact and not any(p.exact for p in later)


@pytest.mark.parametrize("method", METHODS)
def test_text_in_front_of_the_memory_is_computed_and_precedes_it(engine: Engine, method: Any) -> None:
    session = furnished(engine, method())
    session.prefill("put mug_1", QUERY)
    start, front = len(CONTEXT), encode_text("look for mug_1\n")
    for _ in range(2):
        prefill = session.prefill("put mug_1", QUERY, front_ids=front)
        assert prefill.layout.token_ids[start : start + len(front)].tolist() == list(front)
        assert prefill.layout.fresh[start : start + len(front)].all(), "it must never be stored"
        assert not prefill.units[0].hit
        if session.method.capabilities.exact:
            assert close(prefill.logits, plain(engine, prefill))


def test_all_methods_choose_the_same_prompt(engine: Engine) -> None:
    runs = [list(episode(open_session(engine, method()), 14)) for method in METHODS]
    for step in zip(*runs, strict=True):
        assert len({tuple(prefill.layout.token_ids.tolist()) for prefill in step}) == 1
        assert len({tuple(samples.segments(prefill)) for prefill in step}) == 1
        assert all(prefill.flips == step[0].flips for prefill in step)
        assert step[0].layout.token_ids.tolist()[:3] == list(CONTEXT) and samples.segments(step[0])[-1] == "agent"
    assert any(prefill.flips for prefill in runs[0])


def test_approximate_methods_differ_from_the_plain_forward(engine: Engine) -> None:
    for prefill in episode(open_session(engine, reuse()), 3):
        assert not close(prefill.logits, plain(engine, prefill), 1e-3)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("method", [reuse, samples.keep, samples.blocks])
@given(steps=samples.EDITS)
@settings(max_examples=10)
def test_a_stale_version_is_never_served(engine: Engine, method: Any, storage: str, steps: list) -> None:
    """Check law 10, up to rounding in a packed storage."""
    session = furnished(engine, replace(method(), storage=STORAGES[storage]()), cabinets=2, mugs=6)
    (context,) = engine.encode([(None, CONTEXT)])
    for edits in steps:
        samples.edit(session, edits)
        prefill = session.prefill("mug_1", QUERY)
        samples.check_present(session, prefill)
        placements = prefill.layout.placements
        for p, truth in zip(placements, engine.encode([(context, p.unit.token_ids) for p in placements]), strict=True):
            block = p.block or session.method.storage.get(p.fused)
            bound = 0.01 if storage == "packed" else 1e-9
            assert close(block.k[:], truth.k, bound) and close(block.v[:], truth.v, bound)
        session.advance()


@pytest.mark.parametrize("approximate", [reuse, samples.sparsex])
@given(steps=samples.EDITS)
@settings(max_examples=12)
def test_approximate_rows_never_enter_the_exact_prefix(engine: Engine, approximate: Any, steps: list) -> None:
    """Law 9: two methods share one storage, and the prefix stays exact."""
    exact = samples.prefix()
    methods = (exact, replace(approximate(), storage=exact.storage))
    sessions = [furnished(engine, method, cabinets=2, mugs=6) for method in methods]
    for edits in steps:
        for session in sessions:
            for number, place in edits:
                session.store.put(f"mug_{number}", "object", f"mug mug_{number} {place}\n")
        sessions[1].prefill("mug_1", QUERY)
        prefill = sessions[0].prefill("mug_1", QUERY)
        assert close(prefill.logits, plain(engine, prefill))
        for session in sessions:
            session.advance()


def test_an_earlier_text_hits_again(engine: Engine) -> None:
    session = open_session(engine, reuse())
    session.store.put("cabinet_1", "receptacle", "cabinet cabinet_1 closed\n")
    rates = []
    for state in ("closed", "open", "closed", "open"):
        session.store.put("cabinet_1", "receptacle", f"cabinet cabinet_1 {state}\n")
        rates.append(session.prefill("q", QUERY).counts.kv_hit_rate)
    assert rates == [0, 0, 1, 1]


@pytest.mark.parametrize("method", [reuse(), samples.sparsex()], ids=["reuse", "sparsex"])
def test_sessions_share_blocks_within_a_namespace_only(engine: Engine, method: MemoryMethod) -> None:
    sessions = [furnished(engine, method, namespace=name) for name in ("a", "a", "b")]
    assert [session.prefill("q", QUERY).counts.kv_hit_rate for session in sessions] == [0, 1, 0]
    sessions[0].reset()
    assert sessions[1].prefill("q", QUERY).counts.kv_hit_rate == 1
    for session in sessions:
        session.reset()
    assert method.storage.stats()["blocks"] == 0


def test_reset_deletes_everything_but_the_context(engine: Engine) -> None:
    for method in (*METHODS, *samples.APPENDING):
        session = open_session(engine, method())
        first = next(episode(session, 1))
        session.reset()
        assert len(session.store) == session.store.step == len(session.store.history) == 0
        again = next(episode(session, 1))
        assert torch.equal(first.logits, again.logits) and again.cold and again.counts.hit_tokens == 0
        goes_on = method().construction.capabilities.keeps_cache
        prefix_rows = again.counts.prefix_tokens if goes_on else 0  # complete blocks of the context
        context = 0 if method is full or goes_on else len(CONTEXT)
        assert first.counts.encoded_token_layers - again.counts.encoded_token_layers == context * samples.LAYERS
        assert first.counts.fresh_tokens - again.counts.fresh_tokens == context + prefix_rows


@pytest.mark.parametrize(
    ("method", "hit", "encoded", "invalid"),
    [(full, 0, 0, 0), (reuse, 8, 5, 4), (samples.keep, 8, 5, 4), (samples.prefix, 4, 0, 6), (samples.sparsex, 8, 0, 4)],
)
def test_counts_after_one_change(engine: Engine, method: Any, hit: int, encoded: int, invalid: int) -> None:
    session = open_session(engine, method())
    session.store.put("cabinet_1", "receptacle", "cabinet cabinet_1 closed\n")
    session.store.put("mug_1", "object", "mug mug_1 hand\n")
    session.store.put("agent", "agent", "agent at start\n")
    session.prefill("q", QUERY)
    session.advance()
    session.store.put("mug_1", "object", "mug mug_1 in cabinet_1\n")
    counts = session.prefill("q", QUERY).counts
    assert (counts.layers, counts.memory_tokens) == (samples.LAYERS, 13)
    assert counts.prompt_tokens == len(CONTEXT) + 13 + len(QUERY) and counts.hit_tokens == hit
    assert counts.encoded_token_layers == encoded * samples.LAYERS and counts.invalidated_tokens == invalid
    context = len(CONTEXT) if method is full else 0
    assert counts.fresh_tokens == context + 13 - hit + len(QUERY)


def test_ratios_of_the_methods(engine: Engine) -> None:
    last = {method: list(episode(open_session(engine, method(), budget=40), 9))[-1] for method in METHODS}
    ratio = {method: prefill.counts.computed_ratio for method, prefill in last.items()}
    assert ratio[full] == 1.0
    assert last[full].counts.recomputed_ratio == 0.0  # all rows are fresh
    assert last[full].counts.fresh_tokens == last[full].counts.prompt_tokens
    assert last[reuse].counts.recomputed_ratio == 0.0
    assert ratio[reuse] == len(QUERY) / last[reuse].counts.prompt_tokens and ratio[reuse] < ratio[samples.keep] < 0.6
    assert 0.2 < last[samples.keep].counts.recomputed_ratio < 0.4
    assert (
        last[reuse].counts.loaded_bytes > last[samples.keep].counts.loaded_bytes > 0 == last[full].counts.loaded_bytes
    )
    trace = last[samples.keep].trace
    assert trace.active_rows == sorted(trace.active_rows, reverse=True)
    falls = [layer for layer in range(samples.LAYERS - 1) if trace.active_rows[layer + 1] < trace.active_rows[layer]]
    assert [hops.layer for hops in trace.hops] == falls != []


def test_units_report_hits_and_places(engine: Engine) -> None:
    session = open_session(engine, samples.keep())
    steps = list(episode(session, 9))
    assert steps[0].cold and not any(prefill.cold for prefill in steps[1:])
    assert not any(unit.hit for unit in steps[0].units)
    last = steps[-1]
    assert {unit.kind for unit in last.units} == {"static_group", "segment"}
    row = len(CONTEXT)
    for unit in last.units:
        assert unit.start == row and unit.identity
        row += unit.tokens
    assert row == last.layout.query
    assert sum(unit.tokens for unit in last.units if unit.hit) == last.counts.hit_tokens


def test_parts_of_the_time_add_up(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part is the time of its own work; reading the clock takes a microsecond."""
    clock, spent = FakeTime(tick=1e-6), Counter[str]()
    monkeypatch.setattr(time, "perf_counter", clock)

    def slow(owner: object, name: str, part: str, seconds: float) -> None:
        plain = getattr(owner, name)

        def slowly(*arguments: Any, **options: Any) -> Any:
            clock.sleep(seconds)
            spent[part] += seconds
            return plain(*arguments, **options)

        monkeypatch.setattr(owner, name, slowly)

    session = open_session(engine, samples.keep())
    slow(session.store.graph, "update", "update", 1)
    slow(HashedNgrams, "encode", "embed", 2)
    slow(engine, "encode", "encode", 3)
    slow(Embedding, "select", "retrieve", 4)
    slow(KVTransfer, "move", "load", 5)
    slow(engine, "prefill", "prefill", 6)
    began, parts_seen = clock.elapsed, set()
    for prefill in episode(session, 3):
        parts = asdict(prefill.timings)
        assert parts == pytest.approx({part: 1e3 * spent[part] for part in parts}, abs=1)
        assert prefill.timings.total + prefill.after_ms == pytest.approx(1e3 * (clock.elapsed - began), abs=1)
        parts_seen |= spent.keys()
        spent.clear()
        began = clock.elapsed
    assert parts_seen == {"update", "embed", "encode", "retrieve", "load", "prefill"}


def test_context_policies_have_separate_blocks(engine: Engine) -> None:
    logits = []
    storage = reuse().storage
    for policy in ("none", "bos", "system"):
        session = open_session(engine, replace(reuse(), context=policy, storage=storage))
        session.store.put("mug_1", "object", "mug mug_1 hand\n")
        prefill = session.prefill("q", QUERY)
        assert prefill.counts.hit_tokens == 0
        logits.append(prefill.logits)
        if policy == "system":  # the only unit was encoded after the whole context
            assert close(prefill.logits, plain(engine, prefill))
    assert not close(logits[0], logits[1], 1e-3) and not close(logits[1], logits[2], 1e-3)


@pytest.mark.parametrize("method", [reuse, samples.prefix])
def test_a_reset_may_keep_the_blocks(engine: Engine, method: Any) -> None:
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


@pytest.mark.parametrize("method", [*METHODS, *samples.APPENDING])
def test_a_temporary_prompt_changes_no_row_and_no_counter(engine: Engine, method: Any) -> None:
    sessions = [open_session(engine, method()) for _ in range(2)]
    for place in ("hand", "table", "floor", "floor"):
        for session in sessions:
            furnish(session.store, 8)
            session.advance()
            session.store.put("mug_1", "object", f"mug mug_1 {place}\n")
        temporary = sessions[0].prefill("where is mug_2", encode_text("where mug_2"), persist=False)
        assert torch.isfinite(temporary.logits).all()
        actual, expected = (session.prefill("where is mug_1", QUERY) for session in sessions)
        assert torch.equal(actual.layout.token_ids, expected.layout.token_ids)
        assert close(actual.logits, expected.logits)
        assert actual.counts.invalidated_tokens == expected.counts.invalidated_tokens
        assert actual.cold == expected.cold == (place == "hand")
    assert actual.counts.hit_tokens == expected.counts.hit_tokens, "nothing was new in the last prompt"


@pytest.mark.parametrize("method", METHODS)
def test_a_whole_prompt_reuses_harvested_rows_only(engine: Engine, method: Any) -> None:
    session, reference = furnished(engine, method(), 8), furnished(engine, full(), 8)
    first = session.prefill("where is mug_1", QUERY, persist=False, recompute_isolated=True)
    assert close(first.logits, reference.prefill("where is mug_1", QUERY).logits)
    assert first.cold and first.counts.hit_tokens == 0
    harvests = method().construction.capabilities.harvests
    following = session.prefill("where is mug_1", QUERY)
    assert (following.counts.hit_tokens > 0, following.cold) == (harvests, not harvests)
    again = session.prefill("where is mug_1", QUERY, persist=False, recompute_isolated=True)
    assert (again.counts.hit_tokens > 0) == harvests
    assert harvests or close(again.logits, first.logits)


def test_a_prompt_beyond_the_models_positions_is_refused(engine: Engine) -> None:
    session = furnished(engine, replace(full(), retrieval=All()), mugs=120)
    with pytest.raises(CapacityError, match="the model's 500 positions; lower prompt.budget"):
        session.prefill("q", QUERY)


def test_candidates_and_answers_take_positions(engine: Engine) -> None:
    session = open_session(engine, full())
    limit = engine.info.max_positions
    prefill = session.prefill("q", [5] * (limit - len(CONTEXT) - 2))
    assert prefill.layout.rows == limit - 2 and session.score(prefill, [[1], [2, 3, 4]]).scores.numel() == 2
    message = f"3 more tokens after a prompt of {limit - 2} tokens do not fit .* lower prompt"
    with pytest.raises(CapacityError, match=message):
        session.score(prefill, [[1], [2, 3, 4, 5]])
    assert len(session.generate(prefill, 9)) == len(session.generate(prefill, 9, keep=True)) == 2
    with pytest.raises(CapacityError, match="1 more tokens after"):
        session.generate(prefill, 1)


@pytest.mark.parametrize("method", [reuse, samples.keep])
def test_segments_that_fit_no_prompt_are_not_encoded(engine: Engine, method: Callable[[], MemoryMethod]) -> None:
    storage = Ram()
    session = open_session(engine, replace(method(), retrieval=All(), storage=storage))
    session.store.put("mug_1", "object", "mug_1 hot " * 20 + "\n")
    session.store.put("mug_2", "object", "mug_2 hot " * 400 + "\n")
    session.store.put("mug_3", "object", "mug_3 hot\n")
    session.update()
    with pytest.raises(CapacityError, match="the model's 500 positions"):
        session.prefill("q", QUERY)
    assert storage.stats()["blocks"] == 0
    encoded, remaining = session.prepare("q", 10_000)
    assert 20 < encoded < 500 and remaining == 0 and storage.stats()["blocks"] == 1


def test_empty_memory_and_bad_settings(engine: Engine) -> None:
    for method in (*METHODS, *samples.APPENDING):
        prefill = open_session(engine, method()).prefill("q", QUERY)
        assert close(prefill.logits, plain(engine, prefill))
        assert prefill.counts.kv_hit_rate == prefill.counts.recomputed_ratio == 0
    with pytest.raises(ConfigError, match="budget=0"):
        open_session(engine, full(), budget=0)
    with pytest.raises(ConfigError, match="context=bos"):
        open_session(engine, replace(reuse(), context="bos"), context_ids=())
    with pytest.raises(ConfigError, match="append_turn"):
        open_session(engine, full()).append_turn([1])


def test_the_best_candidate_is_the_generated_token(engine: Engine) -> None:
    session = open_session(engine, replace(full(), retrieval=All()))
    prefill = next(episode(session, 1))
    (first,) = session.generate(prefill, 1)
    assert first == int(prefill.logits.argmax())
    prefill = session.prefill("q", QUERY)
    scores = session.score(prefill, [[first], [(first + 1) % VOCABULARY]]).scores
    assert int(scores.argmax()) == 0


def test_dropped_rows_keep_their_positions(engine: Engine) -> None:
    session, limit = furnished(engine, samples.streaming()), engine.info.max_positions
    for _ in range(3):
        prefill = session.prefill("put mug_1 in cabinet_2", QUERY)
        session.append_turn(QUERY)
        session.advance()
    prefill = session.prefill("put mug_1 in cabinet_2", QUERY)
    assert prefill.cache.length < prefill.cache.next_position
    session.generate(prefill, 10 * limit, keep=True)
    assert prefill.cache.next_position == limit


def test_blocks_of_the_history_are_not_deleted_when_unused(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """MemArt's history is never sent again: only the storage's budget may evict it."""
    monkeypatch.setattr("memory.kv_cache.block_store.MAX_UNUSED_PROMPTS", 4)
    session = furnished(engine, replace(samples.memart(), retrieval=Latent(top_k=2)))
    for _ in range(12):
        session.prefill("next", QUERY)
        session.append_turn(encode_text("wait\n"))
        session.advance()
    session.prefill("next", QUERY)
    assert session._builder._pool.blocks[0].start == 0


def test_a_block_may_expire_during_a_prefill(engine: Engine) -> None:
    ticks = count()
    storage = Tiers([Ram()], ttl_seconds=2.0, clock=lambda: 0.01 * next(ticks))  # time passes during a prefill
    session = furnished(engine, replace(samples.memart(), retrieval=Latent(top_k=6, layers="each"), storage=storage))
    for _ in range(12):
        session.prefill("put mug_1 in cabinet_2", QUERY)
        session.append_turn(encode_text("open cabinet_1\n"))
        session.advance()


def test_text_in_front_stays_when_a_transcript_restarts(engine: Engine) -> None:
    session, front, again = furnished(engine, samples.turns()), encode_text("look for mug_1\n"), [*QUERY, *QUERY]
    restarted = False
    while not restarted:
        ids = session.prefill("mug", QUERY, restart=lambda: again, front_ids=front).layout.token_ids.tolist()
        restarted = ids[-len(again) :] == again
        assert ids[-len(front) - len(again if restarted else QUERY) :][: len(front)] == list(front)
        session.append_turn([5] * 40)
