"""Reuse of segments at any offset: sessions compared with a dense cache that processes the same prompts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given, settings

from memory.construction.segments import Segments
from memory.engine.base import Engine
from memory.kv_cache.block import KVBlock
from memory.kv_cache.block_store import identity
from memory.method import MemoryMethod
from memory.prompt.layout import SegmentSpan
from memory.prompt.report import Prefill
from memory.retrieval.all import All
from memory.segments.store import SegmentStore
from memory.session import MemorySession
from memory.stages import Capabilities
from memory.storage.ram import Ram
from tests.memory import sessions
from tests.memory.houses import encode_text, furnish
from tests.memory.sessions import QUERY, check_present, close, edit, episode, groups, open_session, plain, sparsex
from tests.references.sparsex_cache import Part, SegmentCache


def parts(prefill: Prefill, store: SegmentStore | None = None) -> list[Part]:
    """Return a prompt's segments; with a ``store``, group the static ones, and let log lines follow earlier ones."""
    ids, spans = prefill.layout.token_ids.tolist(), prefill.layout.segments
    log = store.log if store else []

    def unit(span: SegmentSpan) -> object:
        group = store and store.graph.group_of[span.segment]
        return group.id if group and group.static else span

    def preceding(span: SegmentSpan) -> tuple[int, ...]:
        before = log[: log.index(span.segment)] if span.segment in log else []
        return tuple(token for id in before for token in store.tokens(id))

    runs = [list(run) for _, run in groupby(spans, key=unit)]
    return [Part(tuple(ids[run[0].start : run[-1].stop]), preceding=preceding(run[0])) for run in runs]


def say(session: MemorySession, *texts: str) -> Prefill:
    session.store.clear()
    for number, text in enumerate(texts):
        session.store.put(f"fact_{number}", "object", text + "\n")
    return session.prefill("q", QUERY)


def in_order() -> object:
    return replace(sparsex(), retrieval=All())


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("method", [sparsex, groups])
def test_an_episode_equals_the_reference(engine: Engine, method: Callable[[], MemoryMethod], seed: int) -> None:
    refresh = method().construction.refresh
    reference = SegmentCache(engine.plain, sessions.CONTEXT, 4, refresh)
    session = open_session(engine, method())
    copied = joined = again = 0
    for prefill in episode(session, 14, seed):
        units = parts(prefill, session.store if method is groups else None)
        joined += len(prefill.layout.segments) - len(units)
        expected = reference.prefill(units, QUERY)
        assert close(prefill.logits, expected[None])
        reused, counts = reference.prefix + reference.exact + reference.approximate, prefill.counts
        assert counts.hit_tokens == reused
        context = len(sessions.CONTEXT) if prefill.cold else 0
        assert counts.fresh_tokens == counts.memory_tokens - reused + len(QUERY) + context
        copied, again = copied + reference.approximate, again + reference.again
    assert (again > 10) == (refresh > 0) and copied > 100
    assert (joined > 10) == (method is groups) and prefill.counts.kv_hit_rate > 0.6
    assert prefill.trace.active_rows == [prefill.counts.fresh_tokens] * 4


def test_old_rows_are_computed_again_up_to_the_share(engine: Engine) -> None:
    method = replace(in_order(), construction=Segments(block_size=4, refresh=0.3))
    session = open_session(engine, method, budget=40)
    texts = [f"mug_{number} in cabinet_{number}" for number in range(6)]
    say(session, *texts)
    stored = method.storage.stats()["blocks"]
    recomputed: list[str] = []
    for _ in range(3):
        prefill = say(session, "door", *texts)  # new text
        recomputed += [p.unit.spans[0].segment for p in prefill.layout.placements if not p.hit]
        assert prefill.counts.fresh_tokens - len(QUERY) >= 0.3 * prefill.counts.memory_tokens
    assert recomputed == [f"fact_{number}" for number in range(7)], "each once, oldest first"
    assert say(session, "door", *texts).counts.kv_hit_rate == 1.0, "all rows are exact"
    assert method.storage.stats()["blocks"] <= stored + 10, "replaced rows must be deleted"


def test_a_temporary_prompt_computes_no_old_rows(engine: Engine) -> None:
    session = open_session(engine, replace(in_order(), construction=Segments(block_size=4, refresh=1.0)), budget=40)
    say(session, "mug in cabinet", "cabinet open")
    session.store.put("fact_0", "object", "door\n")
    temporary = session.prefill("q", QUERY, persist=False)
    assert [unit.hit for unit in temporary.units] == [False, True]
    assert not any(unit.hit for unit in session.prefill("q", QUERY).units)


@given(steps=sessions.EDITS)
@settings(max_examples=12)
def test_a_stale_version_is_never_served(engine: Engine, steps: list) -> None:
    """Law 10: the reference copies only rows of the same text."""
    session, reference = open_session(engine, sparsex()), SegmentCache(engine.plain, sessions.CONTEXT, 4)
    furnish(session.store, cabinets=2, objects=6)
    for edits in steps:
        edit(session, edits)
        prefill = session.prefill("mug_1", QUERY)
        check_present(session, prefill)
        assert close(prefill.logits, reference.prefill(parts(prefill), QUERY)[None])
        session.advance()


def test_names_of_rows_depend_on_all_text_before(engine: Engine) -> None:
    method = in_order()
    prefill = say(open_session(engine, method), "mug in cabinet", "cabinet open", "agent at table")
    ids = prefill.layout.token_ids.tolist()
    for unit in prefill.units:
        stop = unit.start + unit.tokens
        assert method.storage.contains(identity(engine.model_key, ids[: unit.start], ids[unit.start : stop]))


class Rounding(Ram):
    capabilities = Capabilities(exact=False)

    def put(self, block: KVBlock) -> None:
        super().put(KVBlock(block.identity, block.k.bfloat16().double(), block.v.bfloat16().double()))


def test_a_lossy_storage_serves_segments_that_are_not_exact(engine: Engine) -> None:
    method = replace(in_order(), storage=Rounding())
    session = open_session(engine, method)
    for expected in (0.0, 1.0):
        prefill = say(session, "mug in cabinet", "cabinet open", "agent at table")
        assert prefill.counts.kv_hit_rate == expected
        assert not bool(prefill.layout.exact[prefill.layout.context :].any())
    assert not close(prefill.logits, plain(engine, prefill), 1e-5)
    assert close(prefill.logits, plain(engine, prefill), 5e-2)


@pytest.mark.parametrize("prompts", [
    lambda first, second: [(first, "door shut"), ("new", "door shut")],
    lambda first, second: [(first, second), ("new", "mug in cabinet", "door shut"), ("door shut",)],
], ids=["exact", "approximate"])  # fmt: skip
def test_names_of_rows_depend_on_the_rows_before_them(engine: Engine, prompts: Callable[..., Any]) -> None:
    """Three sessions with separate indexes store the rows of one text in one storage."""
    storage, names = Ram(), []
    for texts in (("mug in cabinet", "agent"), *[("agent", "mug in cabinet")] * 2):
        session = open_session(engine, replace(in_order(), storage=storage))
        *_, last = [say(session, *prompt) for prompt in prompts(*texts)]
        names.append(last.units[-1].identity)
    assert names[0] != names[1] == names[2]


def test_a_full_storage_only_costs_hits(engine: Engine) -> None:
    small = Ram(budget_bytes=12 * engine.encode([(None, encode_text("mug in\n"))])[0].nbytes)
    session = open_session(engine, replace(sparsex(), storage=small))
    rates = []
    for prefill in episode(session, 12):
        rates.append(prefill.counts.kv_hit_rate)
        counts, layout = prefill.counts, prefill.layout
        assert counts.hit_tokens + int(layout.fresh.sum()) == layout.rows - len(sessions.CONTEXT)
    assert small.stats()["evicted"] > 0 and max(rates) < 0.9
