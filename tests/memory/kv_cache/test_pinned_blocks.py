from __future__ import annotations

from dataclasses import replace

import pytest

from keep_agent.errors import CapacityError, ConfigError
from memory.construction.segments import Segments
from memory.engine.base import Engine
from memory.kv_cache.block import KVBlock
from memory.kv_cache.pinned_blocks import PinnedPool
from memory.prompt.layout import Unit
from memory.prompt.report import StepTimer
from memory.retrieval.all import All
from tests.memory.houses import encode_text
from tests.memory.layouts import block
from tests.memory.sessions import CONTEXT, QUERY, close, keep, maker, open_session, plain
from tests.references.isolated import full_reuse

SIZE = block(4).nbytes


def pin(pool: PinnedPool, *names: str) -> None:
    for name in names:
        pool.pin(name, f"block of {name}", lambda name=name: block(4, name=f"block of {name}"))


def use(pool: PinnedPool, *names: str) -> None:
    for name in names:
        holder = pool.lease()
        assert pool.find(name, holder) is not None
        holder.release()


def contained(pool: PinnedPool) -> str:
    return "".join(name for name in "abcdefg" if pool.contains(name))


def never() -> KVBlock:
    raise AssertionError("it was there")


def test_the_least_used_are_evicted_above_the_watermark() -> None:
    pool = PinnedPool(10 * SIZE, watermark=0.5)
    pin(pool, "a", "b", "c", "d", "e")
    assert pool.stats().utilisation == 0.5
    use(pool, "d", "a", "a", "c", "b", "e", "e")
    pin(pool, "f")
    assert contained(pool) == "abcef", "b, c and d were used once, d longest ago"
    use(pool, "f", "f", "f")
    pin(pool, "g")
    assert contained(pool) == "abefg" and pool.stats().utilisation == 0.5
    assert pool.find("d", pool.lease()) is None


def test_blocks_in_use_by_a_prompt_are_not_evicted() -> None:
    pool = PinnedPool(3 * SIZE, watermark=0.7)
    prompt = pool.lease()
    pin(pool, "a", "b")
    pool.find("a", prompt)
    use(pool, "b")
    pin(pool, "c")
    assert contained(pool) == "ac"
    pool.find("c", prompt)
    pin(pool, "d")
    assert contained(pool) == "acd", "above the watermark, within the capacity"
    pool.find("d", prompt)
    with pytest.raises(CapacityError, match=f"of {SIZE} bytes does not fit into the pinned pool: {3 * SIZE} of its"):
        pin(pool, "e")
    prompt.release()
    pin(pool, "e")
    assert contained(pool) == "de"


def test_a_block_that_never_fits_evicts_nothing() -> None:
    pool = PinnedPool(2 * SIZE, watermark=1.0)
    pin(pool, "a", "b")
    with pytest.raises(CapacityError, match=r"raise memory\.pinned\.capacity_bytes"):
        pool.pin("c", "big", lambda: block(12, name="big"))
    assert contained(pool) == "ab"
    prompt = pool.lease()
    pool.find("a", prompt)
    with pytest.raises(CapacityError, match="pool: 1024 of its"):
        pool.pin("d", "wide", lambda: block(8, name="wide"))
    assert contained(pool) == "ab", "evicting b would not make enough room"


def test_unpinning_deletes_while_a_prompt_still_refers() -> None:
    pool = PinnedPool(10 * SIZE)
    prompt = pool.lease()
    pin(pool, "a", "b")
    pinned = pool.find("a", prompt)
    pool.unpin("a")
    pool.unpin("a")
    pool.unpin("unknown")
    assert contained(pool) == "b" and pool.find("a", pool.lease()) is None and pinned.tokens == 4
    prompt.release()
    assert pool.stats().bytes == SIZE


def test_several_names_share_one_block_until_the_last_is_unpinned() -> None:
    pool = PinnedPool(10 * SIZE)
    pool.pin("a", "same", lambda: block(4, name="same"))
    pool.pin("b", "same", never)
    pool.pin("a", "same", never)
    assert (pool.stats().entries, pool.stats().bytes) == (2, SIZE)
    pool.unpin("a")
    assert contained(pool) == "b"
    use(pool, "b")
    pool.pin("b", "other", lambda: block(4, name="other"))
    assert (pool.stats().entries, pool.stats().bytes) == (1, SIZE), "no name refers to the first block"
    assert pool.find("b", pool.lease()).identity == "other"


TEXTS = ["cabinet cabinet_1 closed\n", "mug mug_1 cabinet_1\n"]
KNOWN = [tuple(encode_text(text)) for text in TEXTS]


def furnish(session: object, texts: list[str] = TEXTS) -> None:
    for number, text in enumerate(texts):
        session.store.put(f"fact_{number}", "object", text)


method = maker("sparsex", construction=Segments(block_size=4), retrieval=All())


def test_pinned_knowledge_survives_a_reset_and_serves_every_session(engine: Engine) -> None:
    shared = method()
    first, second = open_session(engine, shared), open_session(engine, shared)
    for text in KNOWN:
        first.pin(text)
    first.reset()
    for session in (first, second):
        furnish(session)
        prefill = session.prefill("q", QUERY)
        assert prefill.cold and prefill.counts.kv_hit_rate == 1.0
        assert prefill.counts.encoded_token_layers == len(CONTEXT) * 4
        expected = full_reuse(engine.plain, CONTEXT, [tuple(session.store.tokens(s.id)) for s in session.store], QUERY)
        assert close(prefill.logits, expected[-1:])
        session.reset()
    assert shared.pinned.stats().hits == 4 and shared.storage.stats()["blocks"] == 0


def test_pinned_knowledge_is_served_under_its_extra_key_alone(engine: Engine) -> None:
    shared = method()
    shop, home, default = (open_session(engine, shared, namespace=key) for key in ("shop", "home", ""))
    shop.pin(KNOWN[0])
    shop.pin(KNOWN[1], "home")
    home.pin(KNOWN[1])  # pinned twice
    assert [s.is_pinned(KNOWN[0]) for s in (shop, home, default)] == [True, False, False]
    assert shop.is_pinned(KNOWN[1], "home") and not shop.is_pinned(KNOWN[1])
    hits = []
    for session in (shop, home, default):
        furnish(session)
        hits.append(session.prefill("q", QUERY).counts.hit_tokens)
    assert hits == [len(KNOWN[0]), len(KNOWN[1]), 0]
    shop.pin(KNOWN[0], "home")
    assert shared.pinned.stats().entries == 3
    assert shared.pinned.stats().bytes == sum(engine.encode([(None, text)])[0].nbytes for text in KNOWN)


def test_pinning_and_unpinning_while_the_session_runs(engine: Engine) -> None:
    session = open_session(engine, method())
    furnish(session)
    session.pin(KNOWN[1])
    first = session.prefill("q", QUERY)
    assert [unit.hit for unit in first.units] == [False, True]
    session.advance()
    session.pin(KNOWN[0])
    session.unpin(KNOWN[1])
    again = session.prefill("q", QUERY)
    assert again.counts.kv_hit_rate < 1.0, "pinned rows are not harvested"
    assert close(again.logits, plain(engine, again)), "a first segment pinned after the context is exact"
    assert not session.is_pinned(KNOWN[1])


def test_no_prompt_keeps_a_pinned_block_alive(engine: Engine) -> None:
    nbytes = engine.encode([(None, KNOWN[0])])[0].nbytes
    shared = replace(method(), pinned=PinnedPool(3 * nbytes, watermark=0.4))
    session, second = open_session(engine, shared), open_session(engine, shared)
    session.pin(KNOWN[0])
    furnish(session, TEXTS[:1])
    unit = Unit.of("segment", [("fact_0", KNOWN[0])])
    session._builder.build([unit], QUERY, session._need_context(), StepTimer())
    second.pin(KNOWN[1])
    assert second.is_pinned(KNOWN[1]) and not second.is_pinned(KNOWN[0])
    session.prefill("q", QUERY, persist=False)
    session.unpin(KNOWN[1])
    assert shared.pinned.stats().bytes == 0


def test_a_method_without_lookup_by_tokens_refuses_to_pin(engine: Engine) -> None:
    session = open_session(engine, keep())
    with pytest.raises(ConfigError, match="memory method 'keep' .* use construction Segments"):
        session.pin(KNOWN[0])
    with pytest.raises(ConfigError, match="use construction Segments"):
        session.is_pinned(KNOWN[0])
