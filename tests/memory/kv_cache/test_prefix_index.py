"""The exact prefix: where it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memory.construction.prefix import Prefix
from memory.engine.base import Engine
from memory.prompt.units import Unit
from memory.segments.segment import Segment
from memory.segments.store import SegmentStore
from tests.memory.houses import encode_text
from tests.memory.sessions import QUERY, close, open_session, plain, prefix


class Foreign(Prefix):
    """One unit a segment, the second of which belongs to somebody else."""

    def plan(self, segments: Sequence[Segment], store: SegmentStore, step: int) -> list[Unit]:
        units = [Unit.of("segment", [(segment.id, store.tokens(segment.id))]) for segment in segments]
        return [replace(unit, namespace="other" * (number == 1)) for number, unit in enumerate(units)]


def test_a_prefix_ends_before_what_lies_in_another_namespace(engine: Engine) -> None:
    session = open_session(engine, replace(prefix(), construction=Foreign(block_size=4)))
    for number in range(3):
        session.store.put(f"mug_{number}", "object", f"mug mug_{number} hand\n")
    hits = [session.prefill("q", QUERY).counts.hit_tokens for _ in range(3)]
    assert hits == [0, 4, 4], "of three segments of 4 tokens"


def test_a_prefix_ends_before_text_in_front(engine: Engine) -> None:
    """Behind other text the memory's rows are others, and those of an earlier prompt are no use."""
    session = open_session(engine, prefix())
    session.store.put("mug_1", "object", "mug mug_1 hand\n")
    for front, hits, lost in (("", 0, 0), ("", 4, 0), ("look for it\n", 0, 4), ("look for it\n", 0, 0), ("", 4, 0)):
        prefill = session.prefill("q", QUERY, front_ids=encode_text(front) if front else ())
        assert (prefill.counts.hit_tokens, prefill.counts.invalidated_tokens) == (hits, lost)
        assert close(prefill.logits, plain(engine, prefill))
