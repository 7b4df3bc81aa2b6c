"""Sessions of one method that come, go on, ask aside, forget and leave: laws 8 to 10 on a tiny model in float64."""

from __future__ import annotations

from collections.abc import Callable
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
from memory.kv_cache.slot_prefix_index import SlotPrefixIndex
from memory.method import MemoryMethod
from memory.prompt.units import common_prefix
from memory.session import MemorySession
from tests.laws.transcripts import extend_mask
from tests.memory.houses import encode_text, furnish
from tests.memory.sessions import CONTEXT, EVICTING, close, open_session, turns
from tests.references.isolated import dense_mask

OPERATIONS = ("open", "ask", "ask", "ask", "ask", "aside", "answer", "reset", "restart", "close", "generate", "abort")
STEPS = st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 3), st.integers(1, 9)), min_size=6, max_size=14)


class Watched:
    """A session, and which of its rows could see which."""

    house: ClassVar[dict[str, int]] = {"cabinets": 2, "objects": 4}

    def __init__(self, session: MemorySession) -> None:
        self.session = session
        self.visible = torch.zeros(0, 0, dtype=torch.bool)
        self.furnish()

    def furnish(self) -> None:
        furnish(self.session.store, **self.house)

    @property
    def cache(self) -> PagedCache:
        return self.session._builder.cache

    def ask(self, number: int, lasting: bool = True) -> None:
        """Logits equal transformers' forward in which each row sees what was live when it was computed."""
        engine, query = self.session.engine, encode_text(f"where mug_{number}\nnext")
        before, tokens = self.cache.positions, list(self.cache.tokens)
        self.session.store.put(f"mug_{number}", "object", f"mug mug_{number} step {self.session.store.step}\n")
        prefill = self.session.prefill(f"mug_{number}", query, lasting=lasting, instruction_ids=query[:2])
        ids = prefill.layout.token_ids
        prefix = ids.numel() - prefill.trace.active_rows[0]
        if prefix > common_prefix(tokens, ids.tolist()):  # law 9: shared rows are exact
            visible, seen = torch.ones(prefix, prefix, dtype=torch.bool).tril(), torch.arange(prefix)
        else:
            visible, seen = self.visible[:prefix, :prefix], before[before < prefix]
        visible, rows = extend_mask(visible, seen, ids.numel()), torch.arange(ids.numel())
        assert close(prefill.logits, engine.forward_plain(ids, dense_mask(engine.plain, visible, rows, rows))[-1:])
        if lasting:
            self.visible = visible
            self.check_told(ids)

    def check_told(self, ids: torch.Tensor) -> None:
        """Law 10: what is live stands for the prompt's tokens, in their present version."""
        cache, budget = self.cache, self.session.method.retention.budget
        kept = torch.tensor(cache.tokens)[: cache.exact]
        assert torch.equal(kept, ids[: cache.exact])
        assert cache.positions[: len(CONTEXT)].tolist() == list(range(len(CONTEXT)))
        assert budget is None or cache.length <= max(budget, len(CONTEXT) + 12)
        if self.session.method.construction.survivors == "stay":
            assert cache.tokens == ids.tolist()


class Flat:
    """Several sessions of one method, and the slots they share."""

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
        return [
            cache.slot_map.clone(),
            cache.positions,
            *(x[:, :, cache.slot_map] for x in (cache.pool.k, cache.pool.v)),
        ]

    def do(self, operation: str, which: int, number: int) -> None:
        """One session does something; nobody else's rows change, and all slots add up."""
        if operation == "open" or not self.sessions:
            self.sessions.append(self.watched(open_session(self.engine, self.method)))
            return
        one = self.sessions[which % len(self.sessions)]
        others = [watched for watched in self.sessions if watched is not one]
        before = [self.snapshot(watched) for watched in others]
        getattr(self, operation)(one, number)
        self.check_shared()
        for watched, rows in zip(others, before, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(self.snapshot(watched), rows, strict=True))

    def ask(self, one: Watched, number: int) -> None:
        one.session.advance()
        one.ask(number)

    def aside(self, one: Watched, number: int) -> None:
        before = self.snapshot(one)
        one.ask(number, lasting=False)
        assert all(torch.equal(a, b) for a, b in zip(self.snapshot(one), before, strict=True))

    def abort(self, one: Watched, number: int) -> None:
        """A prefill that fails in some layer: what was there before it, as far as its prompt begins with it, is there.

        Neither new rows nor what they saw leave a trace.
        """
        tokens = list(one.cache.tokens)
        self.fail(one, number)
        cache, observer = one.cache, one.cache.observer
        rows = cache.next_position
        if rows > common_prefix(tokens, cache.tokens):  # it had begun with rows of another session
            one.visible = torch.ones(rows, rows, dtype=torch.bool).tril()
        one.visible = one.visible[:rows, :rows]
        assert not observer.places.numel() or int(observer.places[-1]) < rows

    def fail(self, one: Watched, number: int) -> None:
        """A prefill ends in the middle of a layer."""

        def raise_error(*_: object) -> None:
            raise MemoryError

        hook = self.engine.decoder.layers[number % self.engine.info.layers].mlp.register_forward_pre_hook(raise_error)
        try:
            with pytest.raises(MemoryError):
                one.session.prefill(f"mug_{number}", encode_text(f"where mug_{number}\nnext"))
        finally:
            hook.remove()

    def answer(self, one: Watched, number: int) -> None:
        one.session.append_turn([7] * (number // 3))

    def reset(self, one: Watched, number: int) -> None:
        one.session.reset()
        one.furnish()
        assert one.cache.next_position == 0

    def restart(self, one: Watched, number: int) -> None:
        """A transcript that begins anew: what differs is cut off, what was dropped before it stays dropped."""
        one.session._transcript.clear()

    def close(self, one: Watched, number: int) -> None:
        self.sessions.remove(one)

    def generate(self, one: Watched, number: int) -> None:
        if one.cache.logits is None:
            return
        before, length, logits = self.snapshot(one), one.cache.length, one.cache.logits
        self.engine.generate(one.cache, logits, number)
        self.engine.score(one.cache, [[1, 2, 3], [4, 5]])
        one.cache.rewind(length, logits)
        assert all(torch.equal(a, b) for a, b in zip(self.snapshot(one), before, strict=True))


@pytest.mark.parametrize("method", [turns, *EVICTING])
@given(steps=STEPS)
@settings(max_examples=20)
def test_sessions_never_touch_each_others_rows(
    method: Callable[[], MemoryMethod], engine: Engine, steps: list[tuple[str, int, int]]
) -> None:
    flat = Flat(engine, method())
    for step in steps:
        flat.do(*step)
    pool, index = flat.shared
    flat.sessions.clear()
    pool.check_integrity()
    assert pool.used == len(set(index.slots.tolist())), "closed sessions leave nothing but shared prefixes"
    index.clear()
    assert pool.used == 0


def test_a_session_that_is_reset_takes_all_its_transcripts_out_of_the_index(engine: Engine) -> None:
    """Also one that began anew, with questions asked aside; but not what another session goes on from."""
    flat = Flat(engine, turns())
    (one,) = flat.sessions
    for number in range(4):
        if number == 2:
            flat.do("restart", 0, 0)
            one.session.store.put("cabinet_1", "receptacle", "cabinet cabinet_1 open\n")
        flat.do("ask", 0, number)
        flat.do("aside", 0, number)
    pool, index = flat.shared
    assert index.slots.numel() > len(set(one.cache.slots.tolist()) & set(index.slots.tolist())), "of two transcripts"
    flat.do("open", 0, 0)
    other = flat.sessions[1]
    other.session.store.put("cabinet_1", "receptacle", "cabinet cabinet_1 open\n")
    flat.do("ask", 1, 2)
    goes_on = set(other.cache.slots.tolist()) & set(index.slots.tolist())
    flat.do("reset", 0, 0)
    assert set(index.slots.tolist()) <= goes_on
    flat.do("reset", 1, 0)
    assert not index.slots.numel() and pool.used == 0


@pytest.mark.parametrize("method", [turns, *EVICTING])
def test_a_prefill_that_fails_leaves_what_was_found_for_it(method: Callable[[], MemoryMethod], engine: Engine) -> None:
    """Rows of another session's transcript, which the next prefill goes on from."""
    flat = Flat(engine, method())
    for step in (("ask", 0, 1), ("open", 0, 0), ("abort", 1, 1)):
        flat.do(*step)
    one = flat.sessions[1]
    assert one.cache.exact == one.cache.next_position >= len(CONTEXT), "a prefix hit"
    flat.do("ask", 1, 2)


def test_rows_that_are_not_finite_harm_no_other_session() -> None:
    """Others read over slots behind their own, masked: a number that is none would stay one."""
    model = tiny_model("qwen2", layers=4)
    bad = model.spec.vocab - 1
    model.module.model.embed_tokens.weight.data[bad] = float("nan")  # as a text whose keys overflow float16
    with TransformersEngine(model) as engine:
        method = turns()
        one, other = (open_session(engine, method, namespace=name) for name in ("one", "other"))
        for session in (one, other):
            furnish(session.store)
        query = encode_text("where mug_1\nnext")

        def turn(session: MemorySession, ids: list[int]) -> torch.Tensor:
            found = session.prefill("mug", ids).logits
            session.append_turn(encode_text("open cabinet_1\n"))
            return found

        turn(other, query)
        with pytest.raises(ModelError, match="not finite"):
            turn(one, [5, bad, 6])
        assert all(turn(session, query).isfinite().all() for session in (other, one, other))
        one.close()
        del one
        fresh = open_session(engine, method, namespace="fresh")
        furnish(fresh.store)
        assert all(turn(session, query).isfinite().all() for session in (fresh, other))
