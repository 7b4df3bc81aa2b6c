"""Sessions that find segments of earlier prompts at any offset, against a dense walk through the same prompts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby

import pytest
import torch
from hypothesis import given, settings

from keep_agent.errors import ConfigError
from memory.construction.segments import Segments
from memory.engine.base import Engine
from memory.kv_cache.block import KVBlock, identity
from memory.loading.layer_balanced import LayerBalanced
from memory.loading.serial import Serial
from memory.method import MemoryMethod
from memory.prompt.report import Prefill
from memory.prompt.units import Span
from memory.recompute.multi_hop import MultiHop
from memory.recompute.schedule import Schedule
from memory.retrieval.all import All
from memory.segments.store import SegmentStore
from memory.session import MemorySession
from memory.stages import Capabilities
from memory.storage.ram import Ram
from tests.memory.houses import encode_text, furnish
from tests.memory.sessions import (
    CONTEXT,
    EDITS,
    QUERY,
    check_present,
    close,
    edit,
    episode,
    groups,
    open_session,
    plain,
    sparsex,
)
from tests.references.sparsex_cache import Part, SegmentCache


def parts(prefill: Prefill, store: SegmentStore | None = None) -> list[Part]:
    """The units of a prompt: its segments, or with a ``store`` its static groups and the others alone.

    A line of its log is named by all lines up to it.
    """
    ids, spans = prefill.layout.token_ids.tolist(), prefill.layout.segments
    log = store.log if store else []

    def unit(span: Span) -> object:
        found = store and store.graph.static_group(store.get(span.segment))
        return span if found is None else found.id

    def behind(span: Span) -> tuple[int, ...]:
        before = log[: log.index(span.segment)] if span.segment in log else []
        return tuple(token for id in before for token in store.tokens(id))

    runs = [list(run) for _, run in groupby(spans, key=unit)]
    return [Part(tuple(ids[run[0].start : run[-1].stop]), preceding=behind(run[0])) for run in runs]


def say(session: MemorySession, *texts: str) -> Prefill:
    """A prompt of these texts."""
    session.store.clear()
    for number, text in enumerate(texts):
        session.store.put(f"fact_{number}", "object", text + "\n")
    return session.prefill("q", QUERY)


def in_order() -> object:
    return replace(sparsex(), retrieval=All())


# -- against the reference -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("method", [sparsex, groups])
def test_an_episode_equals_the_dense_walk_through_it(
    engine: Engine, method: Callable[[], MemoryMethod], seed: int
) -> None:
    refresh = method().construction.refresh
    reference = SegmentCache(engine.plain, CONTEXT, 4, refresh)
    session = open_session(engine, method())
    moved = joined = again = 0
    for prefill in episode(session, 14, seed):
        told = parts(prefill, session.store if method is groups else None)
        joined += len(prefill.layout.segments) - len(told)
        expected = reference.prefill(told, QUERY)
        assert close(prefill.logits, expected[None])
        found = reference.prefix + reference.exact + reference.approximate
        assert prefill.counts.hit_tokens == found
        assert prefill.counts.fresh_tokens == prefill.counts.memory_tokens - found + len(QUERY) + (
            len(CONTEXT) if prefill.cold else 0
        )
        moved, again = moved + reference.approximate, again + reference.again
    assert (again > 10) == (refresh > 0)
    assert moved > 100
    assert (joined > 10) == (method is groups)
    assert prefill.counts.kv_hit_rate > 0.6
    assert prefill.trace.active_rows == [prefill.counts.fresh_tokens] * 4


def test_old_rows_are_computed_anew_until_the_share_is_new(engine: Engine) -> None:
    method = replace(in_order(), construction=Segments(block_size=4, refresh=0.3))
    session = open_session(engine, method, budget=40)
    texts = [f"mug_{number} in cabinet_{number}" for number in range(6)]
    say(session, *texts)
    stored = method.storage.stats()["blocks"]
    anew: list[str] = []
    for _ in range(3):
        prefill = say(session, "door", *texts)  # of which the first prompt knew nothing
        anew += [p.unit.spans[0].segment for p in prefill.layout.placements if not p.hit]
        assert prefill.counts.fresh_tokens - len(QUERY) >= 0.3 * prefill.counts.memory_tokens
    assert anew == [f"fact_{number}" for number in range(7)], "each once, the oldest first"
    assert say(session, "door", *texts).counts.kv_hit_rate == 1.0, "all are exact now"
    assert method.storage.stats()["blocks"] <= stored + 10, "rows that others have replaced are gone"


def test_what_is_asked_aside_computes_no_old_rows(engine: Engine) -> None:
    session = open_session(engine, replace(in_order(), construction=Segments(block_size=4, refresh=1.0)), budget=40)
    say(session, "mug in cabinet", "cabinet open")
    session.store.put("fact_0", "object", "door\n")
    aside = session.prefill("q", QUERY, lasting=False)
    assert [unit.hit for unit in aside.units] == [False, True]
    assert not any(unit.hit for unit in session.prefill("q", QUERY).units)
    with pytest.raises(ConfigError, match="refresh=1.5"):
        Segments(refresh=1.5)


@given(steps=EDITS)
@settings(max_examples=12)
def test_a_stale_version_is_never_served(engine: Engine, steps: list) -> None:
    """Law 10: the reference knows nothing of versions, it only ever copies rows of the same text."""
    session, reference = open_session(engine, sparsex()), SegmentCache(engine.plain, CONTEXT, 4)
    furnish(session.store, cabinets=2, objects=6)
    for edits in steps:
        edit(session, edits)
        prefill = session.prefill("mug_1", QUERY)
        check_present(session, prefill)
        assert close(prefill.logits, reference.prefill(parts(prefill), QUERY)[None])
        session.advance()


# -- exact and approximate rows --------------------------------------------------------------------------------------


def test_the_same_prompt_again_is_exact_to_its_last_row(engine: Engine) -> None:
    session = open_session(engine, in_order())
    for expected in (0.0, 1.0):
        prefill = say(session, "mug in cabinet", "cabinet open", "agent at table")
        assert prefill.counts.kv_hit_rate == expected
        assert close(prefill.logits, plain(engine, prefill))
    assert bool(prefill.layout.exact[: prefill.layout.query].all())


def test_rows_are_named_by_everything_before_them(engine: Engine) -> None:
    method = in_order()
    prefill = say(open_session(engine, method), "mug in cabinet", "cabinet open", "agent at table")
    ids = prefill.layout.token_ids.tolist()
    for unit in prefill.units:
        stop = unit.start + unit.tokens
        assert method.storage.contains(identity(engine.model_key, ids[: unit.start], ids[unit.start : stop]))


def test_new_text_behind_a_moved_segment_never_becomes_a_prefix(engine: Engine) -> None:
    session = open_session(engine, in_order())
    say(session, "mug in cabinet", "cabinet open for a while")
    first = say(session, "agent", "cabinet open for a while", "door shut")
    assert [unit.hit for unit in first.units] == [False, True, False]
    again = say(session, "agent", "cabinet open for a while", "door shut", "new")
    exact = again.layout.exact[again.layout.context : again.layout.query]
    assert exact.tolist() == [True, True] + [False] * (exact.numel() - 2)
    assert again.counts.hit_tokens == exact.numel() - 2
    assert not close(again.logits, plain(engine, again), 1e-3)


def test_repairing_every_row_is_the_plain_forward(engine: Engine) -> None:
    method = replace(sparsex(), recompute=MultiHop(Schedule("linear", 1.0)))
    for prefill in episode(open_session(engine, method), 5):
        assert close(prefill.logits, plain(engine, prefill))


def test_loading_never_changes_what_repair_gives(engine: Engine) -> None:
    repair = MultiHop(Schedule("linear", 0.3))
    methods = [replace(sparsex(), recompute=repair, loading=way) for way in (Serial(), LayerBalanced())]
    runs = [episode(open_session(engine, method), 8) for method in methods]
    for a, b in zip(*runs, strict=True):
        assert torch.equal(a.logits, b.logits)
        assert a.counts == b.counts


class Rounding(Ram):
    """Loses digits, and does not hide it."""

    capabilities = Capabilities(exact=False)

    def put(self, block: KVBlock) -> None:
        super().put(KVBlock(block.identity, block.k.bfloat16().double(), block.v.bfloat16().double()))


def test_a_lossy_storage_serves_segments_and_calls_nothing_exact(engine: Engine) -> None:
    method = replace(in_order(), storage=Rounding())
    session = open_session(engine, method)
    for expected in (0.0, 1.0):
        prefill = say(session, "mug in cabinet", "cabinet open", "agent at table")
        assert prefill.counts.kv_hit_rate == expected
        assert not bool(prefill.layout.exact[prefill.layout.context :].any())
    assert not close(prefill.logits, plain(engine, prefill), 1e-5)
    assert close(prefill.logits, plain(engine, prefill), 5e-2)


# -- who finds what --------------------------------------------------------------------------------------------------


def test_sessions_share_rows_within_a_namespace_only(engine: Engine) -> None:
    method = sparsex()
    sessions = [open_session(engine, method, namespace=name) for name in ("a", "a", "b")]
    rates = []
    for session in sessions:
        furnish(session.store)
        rates.append(session.prefill("q", QUERY).counts.kv_hit_rate)
    assert rates == [0, 1, 0]
    sessions[0].reset()
    assert sessions[1].prefill("q", QUERY).counts.kv_hit_rate == 1
    for session in sessions:
        session.reset()
    assert method.storage.stats()["blocks"] == 0


def test_rows_are_named_by_the_context_they_were_computed_in(engine: Engine) -> None:
    """Three agents that share no index harvest one text in one storage."""
    storage, names = Ram(), []
    for before in ("mug in cabinet", "agent", "agent"):
        session = open_session(engine, replace(in_order(), storage=storage))
        say(session, before, "door shut")
        names.append(say(session, "new", "door shut").units[-1].identity)
    assert names[0] != names[1] == names[2]


def test_rows_behind_approximate_ones_are_named_by_all_that_shaped_them(engine: Engine) -> None:
    storage, names = Ram(), []
    for first in (("agent", "mug in cabinet"), ("mug in cabinet", "agent"), ("mug in cabinet", "agent")):
        session = open_session(engine, replace(in_order(), storage=storage))
        say(session, *first)
        say(session, "new", "mug in cabinet", "door shut")
        names.append(say(session, "door shut").units[-1].identity)
    assert names[0] != names[1] == names[2]


def test_a_full_storage_costs_hits_and_nothing_else(engine: Engine) -> None:
    small = Ram(budget_bytes=12 * engine.encode([(None, encode_text("mug in\n"))])[0].nbytes)
    session = open_session(engine, replace(sparsex(), storage=small))
    rates = []
    for prefill in episode(session, 12):
        rates.append(prefill.counts.kv_hit_rate)
        assert prefill.counts.hit_tokens + int(prefill.layout.fresh.sum()) == prefill.layout.rows - len(CONTEXT)
    assert small.stats()["evicted"] > 0
    assert max(rates) < 0.9


def random_walk(rng: random.Random) -> Iterator[tuple[str, ...]]:
    texts = ["mug in cabinet", "cabinet open", "agent at table", "door shut", "a much longer text of many words"]
    for _ in range(25):
        yield tuple(rng.sample(texts, rng.randint(1, len(texts))))


def test_any_order_of_few_texts_equals_the_dense_walk(engine: Engine) -> None:
    session, reference = open_session(engine, in_order()), SegmentCache(engine.plain, CONTEXT, 4)
    for texts in random_walk(random.Random(5)):
        prefill = say(session, *texts)
        assert close(prefill.logits, reference.prefill(parts(prefill), QUERY)[None])
