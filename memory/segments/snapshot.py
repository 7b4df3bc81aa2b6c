"""What a session remembers as plain data: segments, and the groups they are in. Keys and values are made anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from keep_agent.errors import DataError
from memory.segments.segment import Segment
from memory.segments.store import check_segment

if TYPE_CHECKING:
    from memory.segments.store import SegmentStore

LONGEST = 4500  # characters of a segment: some 70 words of 64, as many as a fact has
REMEDY = "give one that was saved, unchanged"


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group without its members, which name it."""

    id: int
    last_changed: int
    static_since: int | None


VALUES = {kind: attrgetter(*(field.name for field in fields(kind))) for kind in (Segment, GroupState)}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A store and its graph at one moment; ``group_of`` has the group of each segment."""

    step: int
    created: int  # segments ever
    founded: int  # groups ever
    segments: tuple[Segment, ...]
    group_of: tuple[int, ...]
    groups: tuple[GroupState, ...]

    @classmethod
    def of(cls, store: SegmentStore) -> Snapshot:
        """Of a store whose graph is up to date."""
        graph = store.graph
        groups = tuple(GroupState(g.id, g.last_changed, g.static_since) for g in graph.groups.values())
        of = tuple(graph.group_of(segment.id).id for segment in store)
        return cls(store.step, store.created, graph.founded, tuple(store), of, groups)

    def to_json(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "created": self.created,
            "founded": self.founded,
            "segments": [[*_values(s), group] for s, group in zip(self.segments, self.group_of, strict=True)],
            "groups": [list(_values(group)) for group in self.groups],
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Snapshot:
        """Raises DataError for what `to_json` never gives."""
        try:
            segments = tuple(_made(Segment, one[:-1]) for one in row["segments"])
            of = tuple(_whole(one[-1]) for one in row["segments"])
            groups = tuple(_made(GroupState, one) for one in row["groups"])
            step, created, founded = (_whole(row[key]) for key in ("step", "created", "founded"))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise DataError(f"this is no memory ({type(error).__name__}: {error}); {REMEDY}") from None
        found = cls(step, created, founded, segments, of, groups)
        found._check()
        return found

    def _check(self) -> None:
        """Raises DataError for segments and groups that cannot be together."""
        for segment in self.segments:
            check_segment(segment.id, segment.category, segment.text)
        ids = [segment.id for segment in self.segments]
        ages = [segment.created for segment in self.segments]
        groups = [group.id for group in self.groups]
        wrong = {
            f"a segment has more than {LONGEST} characters": any(len(s.text) > LONGEST for s in self.segments),
            "two segments have one id": len(set(ids)) < len(ids),
            "two segments have one age": len(set(ages)) < len(ages) or max(ages, default=0) > self.created,
            "two groups have one id": len(set(groups)) < len(groups) or max(groups, default=-1) >= self.founded,
            "a group has no segment, or a segment no group": set(groups) != set(self.group_of),
            "something changed after the last step": any(s.last_changed > self.step for s in self.segments)
            or any(max(g.last_changed, g.static_since or 0) > self.step for g in self.groups),
        }
        for problem in (problem for problem, found in wrong.items() if found):
            raise DataError(f"this memory cannot be: {problem}; {REMEDY}")


def _values(one: Segment | GroupState) -> tuple[Any, ...]:
    return VALUES[type(one)](one)


def _made(kind: type, values: Sequence[Any]) -> Any:
    """An instance whose values have the types it says."""
    names = [field.name for field in fields(kind)]
    if not isinstance(values, list) or len(values) != len(names):
        raise ValueError(f"{values!r:.80} has not the values {', '.join(names)}")
    made = kind(*values)
    for field in fields(kind):
        value, wanted = getattr(made, field.name), str(field.type)
        if value is None and "None" in wanted:
            continue
        if wanted.startswith("int"):
            _whole(value)
        elif not isinstance(value, str):
            raise ValueError(f"{field.name}={value!r:.80} is no text")
    return made


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 53:
        raise ValueError(f"{value!r:.80} is no number of things")
    return value
