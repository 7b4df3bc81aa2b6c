"""Snapshot of a session's memory as plain data: segments and groups, without keys and values."""

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

LONGEST = 4500  # most characters of a segment: a fact has at most about 70 words of 64 characters
REMEDY = "give a memory exactly as it was saved"


@dataclass(frozen=True, slots=True)
class GroupState:
    """Group without its members, which follow from `Snapshot.group_of`."""

    id: int
    last_changed: int
    static_since: int | None


_SEGMENT, _GROUP = attrgetter(*Segment.__slots__), attrgetter(*GroupState.__slots__)  # faster than astuple


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Store and graph at one step; ``group_of`` has the group id of each of ``segments``, in their order."""

    step: int
    created: int  # segments ever created
    next_group: int  # groups ever created
    segments: tuple[Segment, ...]
    group_of: tuple[int, ...]
    groups: tuple[GroupState, ...]

    @classmethod
    def of(cls, store: SegmentStore) -> Snapshot:
        """Take the snapshot of a store whose graph is up to date."""
        graph = store.graph
        groups = tuple(GroupState(g.id, g.last_changed, g.static_since) for g in graph.groups.values())
        of = tuple(graph.group_of[segment.id].id for segment in store)
        return cls(store.step, store.created, graph.next_group, tuple(store), of, groups)

    def to_json(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "created": self.created,
            "founded": self.next_group,
            "segments": [[*_SEGMENT(s), group] for s, group in zip(self.segments, self.group_of, strict=True)],
            "groups": [list(_GROUP(group)) for group in self.groups],
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Snapshot:
        """Read the JSON of `to_json`. Raises DataError for anything else."""
        try:
            segments = tuple(_parse(Segment, values[:-1]) for values in row["segments"])
            of = tuple(_count(values[-1]) for values in row["segments"])
            groups = tuple(_parse(GroupState, values) for values in row["groups"])
            step, created, next_group = (_count(row[key]) for key in ("step", "created", "founded"))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise DataError(f"this is not a memory ({type(error).__name__}: {error}); {REMEDY}") from None
        snapshot = cls(step, created, next_group, segments, of, groups)
        snapshot._check()
        return snapshot

    def _check(self) -> None:
        """Raise DataError for segments and groups that contradict each other."""
        for segment in self.segments:
            check_segment(segment.id, segment.category, segment.text)
        ids = [segment.id for segment in self.segments]
        ages = [segment.created for segment in self.segments]
        groups = [group.id for group in self.groups]
        problems = {
            f"a segment has more than {LONGEST} characters": any(len(s.text) > LONGEST for s in self.segments),
            "two segments have the same id": len(set(ids)) < len(ids),
            "creation numbers are not unique, or above 'created'": len(set(ages)) < len(ages)
            or max(ages, default=0) > self.created,
            "group ids are not unique, or not below 'founded'": len(set(groups)) < len(groups)
            or max(groups, default=-1) >= self.next_group,
            "a group has no segment, or a segment no group": set(groups) != set(self.group_of),
            "a segment or group changed after the last step": any(s.last_changed > self.step for s in self.segments)
            or any(max(g.last_changed, g.static_since or 0) > self.step for g in self.groups),
        }
        for problem in (problem for problem, present in problems.items() if present):
            raise DataError(f"this memory is inconsistent: {problem}; {REMEDY}")


def _parse(kind: type, values: Sequence[Any]) -> Any:
    """Make an instance of a dataclass. Raises ValueError for values of other types than its fields."""
    if not isinstance(values, list) or len(values) != len(fields(kind)):
        raise ValueError(f"{values!r:.80} does not have the values {', '.join(field.name for field in fields(kind))}")
    for field, value in zip(fields(kind), values, strict=True):
        if value is None and "None" in str(field.type):
            continue
        if str(field.type).startswith("int"):
            _count(value)
        elif not isinstance(value, str):
            raise ValueError(f"{field.name}={value!r:.80} is not a text")
    return kind(*values)


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 53:
        raise ValueError(f"{value!r:.80} is not a whole number from 0 to 2^53")
    return value
