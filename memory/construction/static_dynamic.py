"""KEEP's memory construction: static groups are encoded whole, everything else segment by segment, the log in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from keep_agent.errors import ConfigError
from memory.construction.isolated import Isolated
from memory.prompt.layout import Unit
from memory.segments.segment import Segment
from memory.segments.store import SegmentStore

Lines = tuple[tuple[int, ...], ...]  # token ids


def check_log(tokens: int) -> None:
    """Raises `ConfigError`."""
    if tokens < 0:
        raise ConfigError(f"log={tokens} tokens cannot be: use 0 or more")


def log_units(store: SegmentStore, most: int) -> dict[str, Lines]:
    """By id, the lines that each line of the log is encoded behind: fewer than ``most`` tokens; 0: none."""
    behind: dict[str, Lines] = {}
    before: Lines = ()
    for id in store.log if most else ():
        tokens = store.tokens(id)
        if sum(map(len, before)) + len(tokens) > most:
            before = ()
        behind[id], before = before, (*before, tokens)
    return behind


def segment_unit(segment: Segment, store: SegmentStore, behind: dict[str, Lines]) -> Unit:
    """The segment as a unit of its own, behind the lines that ``behind`` has for it."""
    return replace(Unit.of("segment", [(segment.id, store.tokens(segment.id))]), behind=behind.get(segment.id, ()))


@dataclass(frozen=True)
class StaticDynamic(Isolated):
    """KEEP (arXiv 2602.23592, section 4.1): full attention inside a static group, isolated dynamic segments.

    A group that changes its kind makes other units, whose blocks are other blocks: that is its recomputation.

    The paper does not mention a log, which changes at every step and yet only grows. No segment before a new line can
    see that line, so a line of the agent's actions in its task is encoded behind the lines before it, in the prompt or
    not, at the cost of encoding it alone. After ``log`` tokens the chain restarts; 0: its lines are ordinary segments.
    """

    log: int = 512

    def __post_init__(self) -> None:
        check_log(self.log)

    def plan(self, segments: Sequence[Segment], store: SegmentStore, step: int) -> list[Unit]:
        return list(group_units(segments, store, self.log))


def group_units(segments: Sequence[Segment], store: SegmentStore, log: int) -> Iterator[Unit]:
    """Static groups, and every other segment alone; lines of the log behind ``log`` tokens of it at most."""
    behind = log_units(store, log)

    def group(segment: Segment) -> int:
        static = store.graph.static_group(segment)
        return -1 if static is None else static.id

    for id, run in groupby(segments, key=group):
        if id >= 0:
            yield Unit.of("static_group", [(segment.id, store.tokens(segment.id)) for segment in run])
        else:
            yield from (segment_unit(segment, store, behind) for segment in run)
