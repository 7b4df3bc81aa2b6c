"""Segments of a prompt, each with its state: hit, recomputed, changed or fresh. docs/viewer.md defines the states."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keep_agent.rollout.trace import Entry
from keep_agent.viewer.history import History

HIT, RECOMPUTED, CHANGED, FRESH = "hit", "recomputed", "changed", "fresh"
STATES = (HIT, RECOMPUTED, CHANGED, FRESH)
Ranks = Mapping[str, tuple[tuple[int, int, float], ...]]  # by segment id: (layer, rank from 1, attention received)
UNIT_KINDS = {"static_group": "static", "segment": "dynamic"}


@dataclass(frozen=True, slots=True)
class SegmentView:
    """One segment of a prompt. A unit is a part of the prompt that is encoded as a whole. Indices start at 0."""

    key: str  # the id; with "@1", "@2", ... for older versions in the same prompt
    id: str
    text: str | None  # None: the trace lacks the text
    start: int
    stop: int
    first_unit: int  # first and last unit with rows of the segment; -1: none
    last_unit: int
    kind: str  # static: unit is a group of unchanged segments; dynamic: unit is one segment; else the unit's kind
    block: str  # shortened identity of the block; "" unless the segment lies in exactly one unit
    from_block: int  # number of rows served from blocks
    last_layer: int  # last layer that computed rows of the segment; -1: none
    state: str  # one of STATES
    written: int  # step that wrote this text, -1 if unknown
    versions: int  # number of texts of this segment so far
    ranks: tuple[tuple[int, int, float], ...]  # as in `Ranks`, for each layer at which the recompute stage chose it


def segment_views(entry: Entry, texts: History[str], step: int) -> tuple[SegmentView, ...]:
    """Return the segments of a step in prompt order. Raises KeyError or TypeError for an invalid trace entry."""
    spans, units = entry.get("segments", ()), entry.get("units", ())
    ranks, newer = ranks_of(entry.get("hops", ())), Counter(span["id"] for span in spans)
    views = []
    for span in spans:
        newer[span["id"]] -= 1  # number of later versions of the segment in the prompt
        views.append(_view(span, units, texts, step, newer[span["id"]], ranks))
    return tuple(views)


def ranks_of(hops: Sequence[Entry]) -> Ranks:
    """Rank the chosen segments of every layer by the attention that they received."""
    ranks: dict[str, list[tuple[int, int, float]]] = {}
    for hop in hops:
        received: Counter[str] = Counter()
        for _, target, mass in hop["edges"]:
            received[target] += mass
        for rank, (target, mass) in enumerate(received.most_common(), 1):
            ranks.setdefault(target, []).append((hop["layer"], rank, mass))
    return {id: tuple(places) for id, places in ranks.items()}


def _view(span: Entry, units: Sequence[Entry], texts: History[str], step: int, newer: int, ranks: Ranks) -> SegmentView:
    """Return the view of a segment's span; ``newer``: number of later versions in the same prompt."""
    id, start, stop, last_layer = span["id"], span["start"], span["stop"], span["last_layer"]
    first, last = _units(units, start, stop)
    own_units = units[first : last + 1] if first >= 0 else ()
    from_block = sum(_overlap(unit, start, stop) for unit in own_units if unit["hit"])
    versions = texts.versions(step, id)
    known = versions[: len(versions) - newer]
    step_of_text, text = known[-1] if known else (-1, None)
    if from_block == stop - start:
        # computing layer 0 alone leaves a hit: keys and values of layer 0 depend only on the token
        state = RECOMPUTED if last_layer > 0 else HIT
    else:
        state = CHANGED if step_of_text == step and len(known) > 1 else FRESH
    return SegmentView(
        key=f"{id}@{newer}" if newer else id, id=id, text=text, start=start, stop=stop,
        first_unit=first, last_unit=last,
        kind=UNIT_KINDS.get(own_units[0]["kind"], own_units[0]["kind"]) if own_units else "",
        block=own_units[0]["block"] if len(own_units) == 1 else "",
        from_block=from_block, last_layer=last_layer, state=state, written=step_of_text, versions=len(versions),
        ranks=() if newer else ranks.get(id, ()),
    )  # fmt: skip


def _units(units: Sequence[Entry], start: int, stop: int) -> tuple[int, int]:
    """Return the first and last unit with rows of ``start:stop``; (-1, -1) without one."""
    starts = [unit["start"] for unit in units]
    first, last = max(bisect_right(starts, start) - 1, 0), bisect_right(starts, stop - 1) - 1
    inside = [number for number in range(first, last + 1) if _overlap(units[number], start, stop) > 0]
    return (inside[0], inside[-1]) if inside else (-1, -1)


def _overlap(unit: Entry, start: int, stop: int) -> int:
    return min(stop, unit["start"] + unit["tokens"]) - max(start, unit["start"])
