"""Segments of a prompt and their states: served from a block, repaired, changed, or new."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keep_agent.rollout.trace import Entry
from keep_agent.viewer.history import History

HIT, RECOMPUTED, CHANGED, FRESH = "hit", "recomputed", "changed", "fresh"
Ranks = Mapping[str, tuple[tuple[int, int, float], ...]]  # by segment: (layer, rank from 1, mass)
STATES = (HIT, RECOMPUTED, CHANGED, FRESH)
DYNAMIC = {"static_group": "static", "segment": "dynamic"}


@dataclass(frozen=True, slots=True)
class SegmentView:
    """One segment of a prompt. Rows are prompt rows, layers count from 0, steps are the episode's."""

    key: str  # its id, with "@1", "@2", ... for its older versions in a transcript
    id: str
    text: str | None  # None: the trace does not hold it
    start: int
    stop: int
    first_unit: int  # numbers of the units that its rows are in, -1 for none
    last_unit: int
    kind: str  # static or dynamic; else the kind of its unit
    block: str  # identity of its unit's block, shortened; "" if there is none or there are several
    from_block: int  # rows served from blocks
    last_layer: int  # the last that computed one of its rows, -1 if none
    state: str  # one of STATES
    written: int  # step that gave it this text, -1 if unknown
    versions: int  # texts it has had by now
    ranks: tuple[tuple[int, int, float], ...]  # (layer, rank from 1, mass) at each layer that chose it


def segment_views(entry: Entry, texts: History[str], step: int) -> tuple[SegmentView, ...]:
    """The segments of a step's prompt, in its order. Raises KeyError or TypeError for a broken entry."""
    spans, units = entry.get("segments", ()), entry.get("units", ())
    ranks, remaining = ranks_of(entry.get("hops", ())), Counter(span["id"] for span in spans)
    views = []
    for span in spans:
        remaining[span["id"]] -= 1
        views.append(_view(span, units, texts, step, remaining[span["id"]], ranks))
    return tuple(views)


def ranks_of(hops: Sequence[Entry]) -> Ranks:
    """By segment: at every layer that chose it, its place among the chosen by the attention mass they received."""
    places_by_id: dict[str, list[tuple[int, int, float]]] = {}
    for hop in hops:
        received: Counter[str] = Counter()
        for _, target, mass in hop["edges"]:
            received[target] += mass
        for rank, (target, mass) in enumerate(received.most_common(), 1):
            places_by_id.setdefault(target, []).append((hop["layer"], rank, mass))
    return {id: tuple(places) for id, places in places_by_id.items()}


def _view(span: Entry, units: Sequence[Entry], texts: History[str], step: int, newer: int, ranks: Ranks) -> SegmentView:
    """``newer``: how many later versions of it stand behind it in the same prompt."""
    id, start, stop = span["id"], span["start"], span["stop"]
    first, last = _units(units, start, stop)
    own_units = units[first : last + 1] if first >= 0 else ()
    served = sum(_overlap(unit, start, stop) for unit in own_units if unit["hit"])
    versions = texts.versions(step, id)
    known = versions[: len(versions) - newer]
    written, text = known[-1] if known else (-1, None)
    return SegmentView(
        key=f"{id}@{newer}" if newer else id,
        id=id,
        text=text,
        start=start,
        stop=stop,
        first_unit=first,
        last_unit=last,
        kind=DYNAMIC.get(own_units[0]["kind"], own_units[0]["kind"]) if own_units else "",
        block=own_units[0]["block"] if len(own_units) == 1 else "",
        from_block=served,
        last_layer=span["last_layer"],
        state=_state(served == stop - start, span["last_layer"], written == step and len(known) > 1),
        written=written,
        versions=len(versions),
        ranks=() if newer else ranks.get(id, ()),
    )


def _state(served: bool, last_layer: int, rewritten: bool) -> str:
    """Layer 0 repairs nothing, so rows that only it computed count as served."""
    if served:
        return RECOMPUTED if last_layer > 0 else HIT
    return CHANGED if rewritten else FRESH


def _units(units: Sequence[Entry], start: int, stop: int) -> tuple[int, int]:
    """First and last unit that rows ``start:stop`` are in; (-1, -1) where they are in none."""
    starts = [unit["start"] for unit in units]
    first, last = max(bisect_right(starts, start) - 1, 0), bisect_right(starts, stop - 1) - 1
    inside = [number for number in range(first, last + 1) if _overlap(units[number], start, stop) > 0]
    return (inside[0], inside[-1]) if inside else (-1, -1)


def _overlap(unit: Entry, start: int, stop: int) -> int:
    return min(stop, unit["start"] + unit["tokens"]) - max(start, unit["start"])
