"""Groups of segments: the dataclasses of a segment graph, and the Protocol by which stages read it.

Groups are KEEP's (arXiv 2602.23592, section 4.1): a group is static if none of its members changed within the last
``window`` steps, else dynamic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from keep_agent.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FAMILY = {"object": "world", "receptacle": "world", "session": "talk", "turn": "talk"}
FAMILY |= {category: category for category in ("history", "task", "agent")}
FAMILIES = tuple(dict.fromkeys(FAMILY.values()))  # only segments of one family share a group


@dataclass(frozen=True, slots=True)
class Grouping:
    """Options of the grouping, which all methods of a comparison share."""

    threshold: float = 0.5  # least mean cosine to a group's members at which a segment joins it
    bound: int = 8  # a group of this many members is full: no segment joins it by similarity
    window: int = 10  # steps without changes after which a group is static (the paper's t)
    neighbours: int = 3  # largest number of similarity edges that a new or changed segment adds

    def __post_init__(self) -> None:
        if not -1 <= self.threshold <= 1:
            raise ConfigError(f"threshold={self.threshold} is not a cosine: use -1 to 1")
        if self.bound < 1 or self.window < 0 or self.neighbours < 0:
            values = f"bound={self.bound}, window={self.window}, neighbours={self.neighbours}"
            raise ConfigError(f"a grouping of {values} is invalid: use at least 1, 0 and 0")


@dataclass(slots=True)
class Group:
    id: int
    family: str
    last_changed: int  # step
    members: dict[str, None] = field(default_factory=dict)  # in creation order
    static_since: int | None = None  # step; None: the group is dynamic

    @property
    def static(self) -> bool:
        return self.static_since is not None


@dataclass(frozen=True, slots=True)
class Flip:
    """Transition of a group at ``step``: from dynamic to static, or back."""

    step: int
    group: int
    static: bool


@dataclass(frozen=True, slots=True)
class Scores:
    """Cosine of each segment to a query, in the graph's own order; valid until the graph's next update."""

    values: NDArray[np.float32]  # (segments,)
    groups: NDArray[np.int64]  # (segments,) group ids
    created: NDArray[np.int64]  # (segments,) creation numbers
    ids: Sequence[str]  # (segments,)
    rows: Mapping[str, int]  # maps a segment's id to its index in these arrays

    def __getitem__(self, id: str) -> float:
        return float(self.values[self.rows[id]])


class SegmentGroups(Protocol):
    """Groups of a store's segments, as stages read them."""

    groups: dict[int, Group]  # by id
    group_of: dict[str, Group]  # by segment id
    next_group: int  # id of the next group: the number of groups ever created

    def clear(self) -> None: ...

    def scores(self, query: str) -> Scores:
        """Return the cosine of every segment to ``query``."""
        ...
