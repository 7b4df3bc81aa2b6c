"""Rows of a prompt: units placed one after another, and laid out as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch

from memory.kv_cache.block import KVBlock
from memory.prompt.layout import Layout, Placement, Span, Unit


def place(
    units: Sequence[Unit], start: int, blocks: Sequence[KVBlock | None] = (), hits: Sequence[bool] = ()
) -> list[Placement]:
    """Units one after another from row ``start`` on; without ``blocks`` none has one."""
    placed = []
    for number, unit in enumerate(units):
        placed.append(Placement(unit, start, blocks[number], hits[number]) if blocks else Placement(unit, start))
        start = placed[-1].stop
    return placed


def lay_out(
    context: Sequence[int], placed: Sequence[Placement], query: Sequence[int], known: bool, device: torch.device
) -> Layout:
    """Rows of a prompt; ``known``: the context rows have keys and values."""
    ids = np.fromiter(chain(context, *(p.unit.token_ids for p in placed), query), np.int64)
    first, last = len(context), len(ids) - len(query)
    segments = _segments(placed)
    owner = np.full(len(ids), -1)
    for number, span in enumerate(segments):
        owner[span.start : span.stop] = number
    fresh = np.zeros(len(ids), bool)
    fresh[last:] = True
    fresh[:first] = not known
    for p in placed:
        fresh[p.start : p.stop] = p.block is None and not p.hit and not p.fused
    return Layout(
        token_ids=torch.from_numpy(ids).to(device),
        positions=torch.arange(len(ids), device=device),
        context=first,
        query=last,
        placements=tuple(placed),
        segments=tuple(segments),
        segment_of=torch.from_numpy(owner).to(device),
        fresh=torch.from_numpy(fresh).to(device),
    )


def _segments(placed: Sequence[Placement]) -> list[Span]:
    """Spans in prompt rows; the parts of a segment that was cut are one span again."""
    spans: list[Span] = []
    for p in placed:
        for span in p.unit.spans:
            start, stop = p.start + span.start, p.start + span.stop
            if spans and spans[-1].segment == span.segment and spans[-1].stop == start:
                start = spans.pop().start
            spans.append(Span(span.segment, start, stop))
    return spans
