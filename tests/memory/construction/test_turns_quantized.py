"""Sessions with quantized caches, compared with transformers' own forward over unpacked keys and values.

The reference goes through the same passes, because a row that was computed before its page was full read that page
unpacked. In float64 both round every number in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings

from memory.engine.base import Engine
from memory.kv_cache.quantized import QuantizedCache
from memory.method import MemoryMethod
from memory.prompt.layout import common_prefix
from memory.session import MemorySession
from memory.storage.quantized import Quantized
from tests.memory.construction.test_turns import STEPS, Flat, Watched
from tests.memory.houses import encode_text
from tests.memory.sessions import close, furnished, query_memory, snapkv, streaming, turns
from tests.references.packed import PAGE, Dense

EXACT = 1e-9
FORMATS = {"4 by token": Quantized(bits=4), "8 by channel": Quantized(bits=8, group=8, keys="channel")}
CANDIDATES = [[1, 2, 3], [4, 5]]


class Rounded(Watched):
    """Session with its rows in full precision."""

    house: ClassVar[dict[str, int]] = {"cabinets": 3, "objects": 9}  # fills a page in one or two turns

    def __init__(self, session: MemorySession) -> None:
        super().__init__(session)
        self.dense = Dense(session.engine.plain, session.method.packs)

    @property
    def cache(self) -> QuantizedCache:
        return self.session._builder.cache

    def ask(self, number: int, lasting: bool = True) -> None:
        """Compare the logits; the reference evicts the rows that the session selected."""
        tokens, query = list(self.cache.tokens), encode_text(f"where mug_{number}\nnext")
        self.session.store.put(f"mug_{number}", "object", f"mug mug_{number} step {self.session.store.step}\n")
        prefill = self.session.prefill(f"mug_{number}", query, lasting=lasting, instruction_ids=query[:2])
        ids = prefill.layout.token_ids.tolist()
        prefix = len(ids) - prefill.trace.active_rows[0]
        assert prefix <= common_prefix(tokens, ids), "packed rows are not shared"
        dense = self.dense if lasting else self.dense.copy()
        dense.cut(prefix)
        assert close(prefill.logits, dense.append(ids[prefix:])[-1:], EXACT)
        if not lasting:
            return
        if self.session.method.retention.budget is not None:
            dense.drop(torch.nonzero(~self.cache.live)[:, 0])
        assert torch.equal(self.cache.live, dense.live) and self.cache.packed == len(ids) // PAGE * PAGE
        for layer, stored in enumerate(dense.stored.layers):  # input of a retention stage
            assert close(self.cache.keys(layer), stored.keys[0][:, dense.live], EXACT)
        self.check_told(prefill.layout.token_ids)


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
