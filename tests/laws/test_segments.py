"""Laws 2, 3 and 9 for rows reused at other positions. Error: largest difference over the largest magnitude."""

from __future__ import annotations

import pytest
import torch

from memory.construction.base import Context, SessionResources
from memory.construction.segments import AnyOffsetBuilder, Segments
from memory.engine.base import Engine
from memory.loading.next_layer import NextLayer
from memory.loading.serial import Serial
from memory.method import MemoryMethod
from memory.prompt.layout import Unit
from memory.prompt.report import StepTimer
from memory.recompute.multi_hop import MultiHop, Schedule
from memory.recompute.none import Nothing
from memory.retrieval.all import All
from memory.segments.store import SegmentStore
from memory.stages import Recompute
from tests.laws.prompts import relative, tokens
from tests.references.sparsex_cache import Part, SegmentCache

EXACT = 1e-5
SIZE = 8
CONTEXT = tuple(tokens(7, 40))
A, B, C, D, E, F = (Part(tuple(tokens(n, 100 + n))) for n in (20, 31, 17, 26, 9, 11))
NEW = [Part(tuple(tokens(6, 60 + i))) for i in range(7)]
QUERY = tokens(12, 50)
OTHER_KEY = Part(A.text, "other")
NOT_STORED = Part(B.text, None)


class Prompts:
    """Prompts of one agent, assembled by the builder and computed by the engine."""

    def __init__(self, engine: Engine, recompute: Recompute | None = None) -> None:
        method = MemoryMethod("segments", All(), Segments(SIZE), recompute or Nothing(), NextLayer())
        self.engine, self.recompute = engine, method.recompute
        session = SessionResources(engine, method, method.pool.lease(), SegmentStore())
        self.builder = AnyOffsetBuilder(session, method.construction)
        (block,) = engine.encode([(None, CONTEXT)])
        self.context = Context(CONTEXT, block, CONTEXT, block)

    def prefill(self, parts: list[Part]) -> torch.Tensor:
        units = [Unit("segment", p.text, (), namespace=p.key or "", reusable=p.key is not None) for p in parts]
        prompt = self.builder.build(units, QUERY, self.context, StepTimer())
        self.layout = prompt.layout
        result = self.engine.prefill(prompt.layout, self.recompute, Serial(), prompt.context_block, keep_raw=True)
        self.builder.store_rows(prompt, result)
        return result.logits[0]

    @property
    def plain(self) -> torch.Tensor:
        return self.engine.forward_plain(self.layout.token_ids)[-1]


STORY = [
    # prompt, rows of the exact prefix, other exact rows, rows reused after another text
    ([A, B, C], 0, 0, 0),
    ([A, B, C], 64, 4, 0),  # the exact prefix has complete blocks only
    ([A, B, D], 48, 3, 0),
    ([A, B, D, E], 72, 5, 0),  # D is in the prefix, although the last rows of B came from a segment
    ([NEW[0], C, NEW[1], A, D], 0, 0, 17 + 20 + 26),
    ([NEW[0], C, NEW[1], A, D], 0, 6, 17 + 6 + 20 + 26),  # NEW[1] came after approximate rows
    ([C, NEW[0], B, A, NEW[2], E], 0, 0, 17 + 6 + 31 + 20 + 9),
    ([NEW[3], E, OTHER_KEY, A], 0, 0, 9 + 20),  # no rows are stored under the other key
    ([OTHER_KEY, NOT_STORED, NOT_STORED, A], 0, 0, 20 + 20),
    ([NEW[4], NEW[5], NEW[6], A], 0, 0, 20),
    ([NEW[4], NEW[5], NEW[6], B], 16, 2, 31),  # the previous new rows are now an exact prefix
    ([A, NOT_STORED, C], 16, 4 + 17, 0),  # C was computed after the same text
    ([A, NOT_STORED, E], 16, 4, 9),
    ([A, A, A], 16, 4, 20 + 20),
    ([F, F, F], 0, 0, 0),
    ([C, F], 0, 0, 17 + 11),  # the rows of the first of the three
]  # fmt: skip


def test_law_2_reused_rows_are_those_of_their_first_prompt(engine: Engine) -> None:
    prompts, reference = Prompts(engine), SegmentCache(engine.plain, CONTEXT, SIZE)
    for parts, prefix, exact, approximate in STORY:
        logits, expected = prompts.prefill(parts), reference.prefill(parts, QUERY)
        assert relative(logits, expected) < EXACT
        assert (reference.prefix, reference.exact, reference.approximate) == (prefix, exact, approximate)
        layout = prompts.layout
        memory = slice(layout.context, layout.query)
        assert int(layout.exact[memory].sum()) == prefix + exact
        assert int((~layout.fresh & ~layout.exact)[memory].sum()) == approximate
        error = relative(logits, prompts.plain)
        assert error > 1e-2 if approximate else error < EXACT  # law 3


@pytest.mark.parametrize("average", [0.3, 1.0])
def test_law_9_recomputation_adds_no_approximate_rows_to_exact_ones(engine: Engine, average: float) -> None:
    """Rows of prompts with recomputation are stored, too; those marked exact equal rows of the plain forward."""
    prompts = Prompts(engine, MultiHop(Schedule("linear", average)))
    count = 0
    for parts, *_ in STORY:
        logits = prompts.prefill(parts)
        if average == 1.0:
            assert relative(logits, prompts.plain) < EXACT
        truth = engine.encode([(None, prompts.layout.token_ids.tolist())])[0]
        for p in prompts.layout.placements:
            if p.exact:
                count += len(p.unit.token_ids)
                assert relative(p.block.k, truth.k[:, :, p.start : p.stop]) < EXACT
                assert relative(p.block.v, truth.v[:, :, p.start : p.stop]) < EXACT
    assert count > 100
