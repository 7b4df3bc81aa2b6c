"""Sessions of every method on a tiny random model, with small windows and blocks."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from hypothesis import strategies as st

from memory.construction.fixed_blocks import FixedBlocks
from memory.construction.groups import Groups
from memory.construction.history import History
from memory.construction.per_segment import PerSegment
from memory.construction.prefix import Prefix
from memory.construction.segments import Segments
from memory.construction.static_dynamic import StaticDynamic
from memory.construction.turns import Turns
from memory.engine.base import Engine
from memory.loading.layer_balanced import LayerBalanced
from memory.loading.next_layer import NextLayer
from memory.loading.serial import Serial
from memory.method import MemoryMethod
from memory.prompt.report import Prefill
from memory.recompute.full import Full
from memory.recompute.multi_hop import MultiHop, Schedule
from memory.recompute.none import Nothing
from memory.retention.h2o import H2O
from memory.retention.query_memory import QueryMemory
from memory.retention.snapkv import SnapKV
from memory.retention.streaming import Streaming
from memory.retrieval.embedding import Embedding
from memory.retrieval.latent import Latent
from memory.segments.groups import Grouping
from memory.segments.sentence_encoder import CachedEncoder, HashedNgrams
from memory.session import MemorySession
from tests.memory.houses import encode_text, furnish

LAYERS = 4
CONTEXT = (1, 5, 9)
QUERY = encode_text("put mug_1 in cabinet_2\nnext")
GROUPING = Grouping(window=3)
EDITS = st.lists(
    st.lists(st.tuples(st.integers(1, 6), st.sampled_from(["hand", "table", "", None])), max_size=3), max_size=6
)


def segments(prefill: Prefill) -> list[str]:
    return [span.segment for span in prefill.layout.segments]


def maker(name: str, **parts: Any) -> Callable[[], MemoryMethod]:
    """Return a function that makes a method, each time with a new storage."""
    default = {"retrieval": Embedding(), "recompute": Nothing(), "loading": NextLayer(), "grouping": GROUPING}

    def make() -> MemoryMethod:
        return MemoryMethod(name, **{**default, **parts})

    make.__name__ = name  # shown in a test's id
    return make


TURNS = {"construction": Turns(block_size=4), "layout": "append"}
full = maker("full", construction=PerSegment(), recompute=Full(), loading=Serial())
prefix = maker("prefix", construction=Prefix(block_size=4))
reuse = maker("reuse", construction=PerSegment())
blocks = maker("blocks", construction=FixedBlocks(size=9), recompute=MultiHop(), loading=LayerBalanced())
sparsex = maker("sparsex", construction=Segments(block_size=4))
groups = maker("groups", construction=Groups(block_size=4))
history = maker("history", construction=History(block_size=4), layout="append")
memart = maker("memart", construction=History(block_size=4), layout="append", retrieval=Latent(top_k=6))
turns = maker("turns", **TURNS)
streaming = maker("streaming", **TURNS, retention=Streaming(budget=40))
h2o = maker("h2o", **TURNS, retention=H2O(budget=40))
snapkv = maker("snapkv", **TURNS, retention=SnapKV(budget=40, window=8))
query_memory = maker("query_memory", **TURNS, retention=QueryMemory(budget=40))
MOVING = TURNS | {"construction": Turns(block_size=4, survivors="move")}
moving = maker("moving", **MOVING, retention=QueryMemory(budget=40))


def keep(average: float = 0.3) -> MemoryMethod:
    recompute = MultiHop(Schedule("linear", average))
    return maker("keep", construction=StaticDynamic(), recompute=recompute, loading=LayerBalanced())()


METHODS = [full, prefix, reuse, blocks, keep, sparsex, groups]
EVICTING = [streaming, h2o, snapkv, query_memory, moving]
APPENDING = [history, memart, turns, *EVICTING]  # their prompts are transcripts


def open_session(engine: Engine, method: MemoryMethod, **knobs: Any) -> MemorySession:
    knobs = {"context_ids": CONTEXT, "budget": 14, **knobs}
    return MemorySession(engine, method, CachedEncoder(HashedNgrams()), encode_text, **knobs)


def furnished(engine: Engine, method: MemoryMethod, cabinets: int = 4, mugs: int = 12, **knobs: Any) -> MemorySession:
    session = open_session(engine, method, **knobs)
    furnish(session.store, cabinets, mugs)
    return session


def edit(session: MemorySession, edits: list) -> None:
    """Apply one list of `EDITS`: put mugs at their places, and remove those without a place."""
    for number, place in edits:
        if place is None and f"mug_{number}" in session.store:
            session.store.remove(f"mug_{number}")
        elif place is not None:
            session.store.put(f"mug_{number}", "object", f"mug mug_{number} {place}\n")


def check_present(session: MemorySession, prefill: Prefill) -> None:
    """Check law 10 for the prompt's text: every segment has its latest version."""
    ids = prefill.layout.token_ids.tolist()
    for span in prefill.layout.segments:
        assert tuple(ids[span.start : span.stop]) == session.store.tokens(span.segment)


def live(session: MemorySession, rng: random.Random) -> None:
    session.advance()
    number = rng.randint(1, 12)
    place = rng.choice(["hand", "cabinet_1", "cabinet_2", "table"])
    session.store.put(f"mug_{number}", "object", f"mug mug_{number} {place}\n", parent=None)
    session.store.put("agent", "agent", f"agent at {place} holding nothing\n")
    if rng.random() < 0.3:
        session.store.put(f"did_{session.store.step}", "history", f"did go to {place}\n")
    if rng.random() < 0.2 and "cabinet_4" in session.store:
        session.store.remove("cabinet_4")


def episode(session: MemorySession, steps: int, seed: int = 0) -> Iterator[Prefill]:
    rng = random.Random(seed)
    furnish(session.store)
    for _ in range(steps):
        yield session.prefill("put mug_1 in cabinet_2", QUERY)
        live(session, rng)


def plain(engine: Engine, prefill: Prefill) -> torch.Tensor:
    return engine.forward_plain(prefill.layout.token_ids)[-1:]


def close(a: torch.Tensor, b: torch.Tensor, scale: float = 1e-5) -> bool:
    return float((a - b).abs().max()) <= scale * float(b.abs().max())
