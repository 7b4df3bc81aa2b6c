"""KEEP's memory construction: static groups are encoded whole, everything else segment by segment, the log in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import ClassVar

from keep_agent.errors import ConfigError
from memory.segment import Segment
from memory.stages import Capabilities, Unit
from memory.store import SegmentStore

Lines = tuple[tuple[int, ...], ...]  # token ids


@dataclass(frozen=True)
class StaticDynamic:
    """KEEP (arXiv 2602.23592, section 4.1): full attention inside a static group, isolated dynamic segments.

    When a group changes its kind its tokens make other units, whose blocks are other blocks: that is the recomputation.

    The paper says nothing of a log, which changes at every step and yet only grows. Nothing before a new line can see
    it, so a line of what the agent has done in its task is encoded behind the lines before it, in the prompt or not:
    it costs what it costs alone. After ``log`` tokens it begins anew; 0: its lines are segments like others.
    """

    log: int = 512
    capabilities: ClassVar[Capabilities] = Capabilities(exact=False, moves_blocks=True)
    assembly: ClassVar[str] = "blocks"

    def __post_init__(self) -> None:
        check_log(self.log)

    def plan(self, segments: Sequence[Segment], store: SegmentStore, step: int) -> list[Unit]:
        return list(units(segments, store, self.log))


def check_log(tokens: int) -> None:
    """Raises `ConfigError`."""
    if tokens < 0:
        raise ConfigError(f"log={tokens} tokens cannot be: use 0 or more")


def units(segments: Sequence[Segment], store: SegmentStore, log: int) -> Iterator[Unit]:
    """Static groups, and every other segment alone; lines of the log behind ``log`` tokens of it at most."""
    lines = _lines(store, log) if log else {}

    def group(segment: Segment) -> int:
        found = store.graph.static_group(segment)
        return -1 if found is None else found.id

    for id, run in groupby(segments, key=group):
        parts = [(segment.id, store.tokens(segment.id)) for segment in run]
        if id >= 0:
            yield Unit.of("static_group", parts)
            continue
        yield from (replace(Unit.of("segment", [part]), behind=lines.get(part[0], ())) for part in parts)


def _lines(store: SegmentStore, most: int) -> dict[str, Lines]:
    """By id, what each line of the log is encoded behind: fewer than ``most`` tokens."""
    found: dict[str, Lines] = {}
    before: Lines = ()
    for id in store.log:
        tokens = store.tokens(id)
        if sum(map(len, before)) + len(tokens) > most:
            before = ()
        found[id], before = before, (*before, tokens)
    return found
