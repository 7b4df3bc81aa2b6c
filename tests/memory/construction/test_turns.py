"""Sessions of one method under random operations: laws 8 to 10 on a tiny model in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keep_agent.errors import ModelError
from memory.engine.base import Engine
from memory.engine.models.tiny_models import tiny_model
from memory.engine.transformers.engine import TransformersEngine
from memory.kv_cache.kv_pool import KVPool
from memory.kv_cache.paged import PagedCache
from memory.kv_cache.prefix_index import SlotPrefixIndex
from memory.kv_cache.quantized import QuantizedCache
from memory.method import MemoryMethod
from memory.prompt.layout import common_prefix
from memory.session import MemorySession
from memory.storage.quantized import Quantized
from tests.laws.transcripts import extend_mask
from tests.memory import sessions
from tests.memory.houses import encode_text, furnish
from tests.memory.sessions import close, furnished, open_session, query_memory, snapkv, streaming, turns
from tests.references.isolated import dense_mask
from tests.references.packed import PAGE, Dense

OPERATIONS = ("open", *["ask"] * 4, "try_query", "answer", "reset", "restart", "close", "generate", "abort")
STEPS = st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 3), st.integers(1, 9)), min_size=6, max_size=14)


class Watched:
    """Session with the visibility of its rows."""

    house: ClassVar[dict[str, int]] = {"cabinets": 2, "objects": 4}

    def __init__(self, session: MemorySession) -> None:
        self.session = session
        self.visible = torch.zeros(0, 0, dtype=torch.bool)
        self.furnish()

    def furnish(self) -> None:
        furnish(self.session.store, **self.house)

    @property
    def cache(self) -> PagedCache | QuantizedCache:
        return self.session._builder.cache

    def ask(self, number: int, persist: bool = True) -> None:
        """Compare with transformers' forward in which each row sees the rows live at its computation."""
        engine, query = self.session.engine, encode_text(f"where mug_{number}\nnext")
        before, tokens = self.cache.positions, list(self.cache.tokens)
        self.session.store.put(f"mug_{number}", "object", f"mug mug_{number} step {self.session.store.step}\n")
        prefill = self.session.prefill(f"mug_{number}", query, persist=persist, instruction_ids=query[:2])
        ids = prefill.layout.token_ids
        prefix = ids.numel() - prefill.trace.active_rows[0]
        if prefix > common_prefix(tokens, ids.tolist()):  # law 9: shared rows are exact
            visible, live = torch.ones(prefix, prefix, dtype=torch.bool).tril(), torch.arange(prefix)
        else:
            visible, live = self.visible[:prefix, :prefix], before[before < prefix]
        visible, rows = extend_mask(visible, live, ids.numel()), torch.arange(ids.numel())
        assert close(prefill.logits, engine.forward_plain(ids, dense_mask(engine.plain, visible, rows, rows))[-1:])
        if persist:
            self.visible = visible
            self.check_live_rows(ids)

    def check_live_rows(self, ids: torch.Tensor) -> None:
        """Check law 10: live rows are those of the prompt's present tokens."""
        cache, budget = self.cache, self.session.method.retention.budget
        exact_ids = torch.tensor(cache.tokens)[: cache.exact]
        assert torch.equal(exact_ids, ids[: cache.exact])
        assert cache.positions[: len(sessions.CONTEXT)].tolist() == list(range(len(sessions.CONTEXT)))
        assert budget is None or cache.length <= max(budget, len(sessions.CONTEXT) + 12)
        if self.session.method.construction.survivors == "stay":
            assert cache.tokens == ids.tolist()


class Flat:
    """Sessions of one method that share slots, with one method for each operation."""

    watched: ClassVar[type[Watched]] = Watched

    def __init__(self, engine: Engine, method: MemoryMethod) -> None:
        self.engine, self.method = engine, method
        self.sessions = [self.watched(open_session(engine, method))]

    @property
    def shared(self) -> tuple[KVPool, SlotPrefixIndex]:
        shelf = self.method.cache_provider(self.engine)
        return shelf.pool, shelf.index

    def check_shared(self) -> None:
        self.shared[0].check_integrity()

    def snapshot(self, watched: Watched) -> list[torch.Tensor]:
        cache = watched.cache
        rows = (x[:, :, cache.slot_map] for x in (cache.pool.k, cache.pool.v))
        return [cache.slot_map.clone(), cache.positions, *rows]

    def do(self, operation: str, which: int, number: int) -> None:
        """Run an operation on one session; check the slots and that no row of another session changes."""
        if operation == "open" or not self.sessions:
            self.sessions.append(self.watched(open_session(self.engine, self.method)))
            return
        watched = self.sessions[which % len(self.sessions)]
        rest = [session for session in self.sessions if session is not watched]
        before = [self.snapshot(session) for session in rest]
        getattr(self, operation)(watched, number)
        self.check_shared()
        for session, rows in zip(rest, before, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(self.snapshot(session), rows, strict=True))

    def ask(self, watched: Watched, number: int) -> None:
        watched.session.advance()
        watched.ask(number)

    def try_query(self, watched: Watched, number: int) -> None:
        before = self.snapshot(watched)
        watched.ask(number, persist=False)
        assert all(torch.equal(a, b) for a, b in zip(self.snapshot(watched), before, strict=True))

    def abort(self, watched: Watched, number: int) -> None:
        """Fail a prefill in some layer: only the rows with which its prompt begins stay."""
        tokens = list(watched.cache.tokens)
        self.fail(watched, number)
        cache, observer = watched.cache, watched.cache.observer
        rows = cache.next_position
        if rows > common_prefix(tokens, cache.tokens):  # rows of another session
            watched.visible = torch.ones(rows, rows, dtype=torch.bool).tril()
        watched.visible = watched.visible[:rows, :rows]
        assert not observer.places.numel() or int(observer.places[-1]) < rows

    def fail(self, watched: Watched, number: int) -> None:
        def raise_error(*_: object) -> None:
            raise MemoryError

        hook = self.engine.decoder.layers[number % self.engine.info.layers].mlp.register_forward_pre_hook(raise_error)
        try:
            with pytest.raises(MemoryError):
                watched.session.prefill(f"mug_{number}", encode_text(f"where mug_{number}\nnext"))
        finally:
            hook.remove()

    def answer(self, watched: Watched, number: int) -> None:
        watched.session.append_turn([7] * (number // 3))

    def reset(self, watched: Watched, number: int) -> None:
        watched.session.reset()
        watched.furnish()
        assert watched.cache.next_position == 0

    def restart(self, watched: Watched, number: int) -> None:
        """Forget the transcript's text: the next prompt cuts rows that differ; rows dropped before these stay out."""
        watched.session._transcript.clear()

    def close(self, watched: Watched, number: int) -> None:
        self.sessions.remove(watched)

    def generate(self, watched: Watched, number: int) -> None:
        if watched.cache.logits is None:
            return
        before, length, logits = self.snapshot(watched), watched.cache.length, watched.cache.logits
        self.engine.generate(watched.cache, logits, number)
        self.engine.score(watched.cache, [[1, 2, 3], [4, 5]])
        watched.cache.rewind(length, logits)
        assert all(torch.equal(a, b) for a, b in zip(self.snapshot(watched), before, strict=True))


@pytest.mark.parametrize("method", [turns, *sessions.EVICTING])
@given(steps=STEPS)
@settings(max_examples=20)
def test_sessions_are_isolated(
    method: Callable[[], MemoryMethod], engine: Engine, steps: list[tuple[str, int, int]]
) -> None:
    flat = Flat(engine, method())
    for step in steps:
        flat.do(*step)
    pool, index = flat.shared
    flat.sessions.clear()
    pool.check_integrity()
    assert pool.in_use == len(set(index.slots.tolist())), "closed sessions leave only shared prefixes"
    index.clear()
    assert pool.in_use == 0


def test_a_reset_deletes_all_transcripts_of_a_session_from_the_index(engine: Engine) -> None:
    """Restarted transcripts and those of temporary prompts are deleted, too; rows that another session uses stay."""
    flat = Flat(engine, turns())
    (watched,) = flat.sessions
    for number in range(4):
        if number == 2:
            flat.do("restart", 0, 0)
            watched.session.store.put("cabinet_1", "receptacle", "cabinet cabinet_1 open\n")
        flat.do("ask", 0, number)
        flat.do("try_query", 0, number)
    pool, index = flat.shared
    assert index.slots.numel() > len(set(watched.cache.slots.tolist()) & set(index.slots.tolist())), (
        "the index must hold two transcripts"
    )
    flat.do("open", 0, 0)
    second = flat.sessions[1]
    second.session.store.put("cabinet_1", "receptacle", "cabinet cabinet_1 open\n")
    flat.do("ask", 1, 2)
    goes_on = set(second.cache.slots.tolist()) & set(index.slots.tolist())
    flat.do("reset", 0, 0)
    assert set(index.slots.tolist()) <= goes_on
    flat.do("reset", 1, 0)
    assert not index.slots.numel() and pool.in_use == 0


@pytest.mark.parametrize("method", [turns, *sessions.EVICTING])
def test_a_failed_prefill_keeps_its_prefix_hit(method: Callable[[], MemoryMethod], engine: Engine) -> None:
    flat = Flat(engine, method())
    for step in (("ask", 0, 1), ("open", 0, 0), ("abort", 1, 1)):
        flat.do(*step)
    watched = flat.sessions[1]
    assert watched.cache.exact == watched.cache.next_position >= len(sessions.CONTEXT), "a prefix hit"
    flat.do("ask", 1, 2)


def test_rows_that_are_not_finite_affect_no_other_session() -> None:
    """Other sessions read masked slots after their own, where NaN would remain NaN."""
    model = tiny_model("qwen2", layers=4)
    bad = model.spec.vocab - 1
    model.module.model.embed_tokens.weight.data[bad] = float("nan")  # like a text whose keys overflow float16
    with TransformersEngine(model) as engine:
        method = turns()
        watched, second = (open_session(engine, method, namespace=name) for name in ("one", "other"))
        for session in (watched, second):
            furnish(session.store)
        query = encode_text("where mug_1\nnext")

        def turn(session: MemorySession, ids: list[int]) -> torch.Tensor:
            logits = session.prefill("mug", ids).logits
            session.append_turn(encode_text("open cabinet_1\n"))
            return logits

        turn(second, query)
        with pytest.raises(ModelError, match="not finite"):
            turn(watched, [5, bad, 6])
        assert all(turn(session, query).isfinite().all() for session in (second, watched, second))
        watched.close()
        del watched
        fresh = furnished(engine, method, namespace="fresh")
        assert all(turn(session, query).isfinite().all() for session in (fresh, second))


EXACT = 1e-9
FORMATS = {"4 by token": Quantized(bits=4), "8 by channel": Quantized(bits=8, group=8, keys="channel")}
CANDIDATES = [[1, 2, 3], [4, 5]]


class Rounded(Watched):
    house: ClassVar[dict[str, int]] = {"cabinets": 3, "objects": 9}  # fills a page in one or two turns

    def __init__(self, session: MemorySession) -> None:
        super().__init__(session)
        self.dense = Dense(session.engine.plain, session.method.packs)

    def ask(self, number: int, persist: bool = True) -> None:
        """Compare the logits; the reference evicts the rows that the session selected."""
        tokens, query = list(self.cache.tokens), encode_text(f"where mug_{number}\nnext")
        self.session.store.put(f"mug_{number}", "object", f"mug mug_{number} step {self.session.store.step}\n")
        prefill = self.session.prefill(f"mug_{number}", query, persist=persist, instruction_ids=query[:2])
        ids = prefill.layout.token_ids.tolist()
        prefix = len(ids) - prefill.trace.active_rows[0]
        assert prefix <= common_prefix(tokens, ids), "packed rows are not shared"
        dense = self.dense if persist else self.dense.copy()
        dense.cut(prefix)
        assert close(prefill.logits, dense.append(ids[prefix:])[-1:], EXACT)
        if not persist:
            return
        if self.session.method.retention.budget is not None:
            dense.drop(torch.nonzero(~self.cache.live)[:, 0])
        assert torch.equal(self.cache.live, dense.live) and self.cache.packed == len(ids) // PAGE * PAGE
        for layer, stored in enumerate(dense.stored.layers):  # input of a retention stage
            assert close(self.cache.keys(layer), stored.keys[0][:, dense.live], EXACT)
        self.check_live_rows(prefill.layout.token_ids)


class PackedFlat(Flat):
    """Sessions of one method without shared rows."""

    watched = Rounded

    def check_shared(self) -> None:
        """Check nothing: there are no shared slots."""

    def snapshot(self, watched: Rounded) -> list[torch.Tensor]:
        cache, layers = watched.cache, range(self.engine.info.layers)
        rows = [kind(layer) for layer in layers for kind in (cache.keys, cache.values)] if cache.length else []
        return [cache.positions, torch.tensor(cache.tokens), *rows]

    def abort(self, watched: Rounded, number: int) -> None:
        """Fail a prefill in some layer: the rows with which its prompt begins stay."""
        tokens = list(watched.cache.tokens)
        self.fail(watched, number)
        rows = watched.cache.next_position
        assert watched.cache.tokens == tokens[:rows]
        watched.dense.cut(rows)

    def reset(self, watched: Rounded, number: int) -> None:
        super().reset(watched, number)
        watched.dense.cut(0)

    def generate(self, watched: Rounded, number: int) -> None:
        """Generate and rewind: only the page that was completed stays packed."""
        cache, dense = watched.cache, watched.dense
        if cache.logits is None:
            return
        rows, length, logits = cache.next_position, cache.length, cache.logits
        for token in self.engine.generate(cache, logits, number):
            assert int(dense.logits.argmax()) == token
            dense.append([token])
        assert close(self.engine.score(cache, CANDIDATES).scores, dense.score(CANDIDATES), EXACT)
        cache.rewind(length, logits)
        dense.cut(rows)
        dense.logits = logits


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("method", [turns, streaming, snapkv, query_memory])
@given(steps=STEPS)
@settings(max_examples=15)
def test_sessions_over_packed_rows_equal_the_rounded_reference(
    method: Callable[[], MemoryMethod], format: str, engine: Engine, steps: list[tuple[str, int, int]]
) -> None:
    flat = PackedFlat(engine, replace(method(), storage=replace(FORMATS[format])))
    for step in steps:
        flat.do(*step)


@pytest.mark.parametrize("format", FORMATS)
def test_rounding_changes_the_logits(format: str, engine: Engine) -> None:
    """Without this, the law would hold for a cache that packs nothing."""
    apart = []
    for method in (turns(), replace(turns(), storage=replace(FORMATS[format]))):
        session = furnished(engine, method, *Rounded.house.values())
        for number in range(6):
            prefill = session.prefill("mug_1", encode_text(f"where mug_{number}\nnext"))
        apart.append(prefill.logits)
    assert session._builder.cache.packed >= PAGE and not close(*apart, 1000 * EXACT) and close(*apart, 0.1)
