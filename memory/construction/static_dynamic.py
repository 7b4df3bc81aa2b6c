"""KEEP's construction: unchanged groups are encoded whole, other segments alone, log lines after earlier log lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from keep_agent.errors import ConfigError
from memory.construction.isolated import Isolated
from memory.prompt.layout import Unit
from memory.segments.segment import Segment
from memory.segments.store import SegmentStore

Lines = tuple[tuple[int, ...], ...]  # token ids


def check_log(tokens: int) -> None:
    if tokens < 0:
        raise ConfigError(f"log={tokens} tokens is negative: use 0 or more")


def log_units(store: SegmentStore, most: int) -> dict[str, Lines]:
    """Map each log line's id to the earlier lines of its run, after which it is encoded; ``most``: tokens of a run."""
    prefixes: dict[str, Lines] = {}
    prefix: Lines = ()
    for id in store.log if most else ():
        tokens = store.tokens(id)
        if sum(map(len, prefix)) + len(tokens) > most:
            prefix = ()
        prefixes[id], prefix = prefix, (*prefix, tokens)
    return prefixes


@dataclass(frozen=True)
class StaticDynamic(Isolated):
    """KEEP (arXiv 2602.23592, section 4.1): static (unchanged) groups are encoded whole, other segments alone.

    When a group becomes static, its segments are encoded again together; when it becomes dynamic, one by one.

    The paper does not mention an action log, which gets a line at every step. A line is encoded after the task's
    earlier lines, even if these are not in the prompt. Their stored rows are reused, so only the new line is computed.
    After ``log`` tokens of lines the next one is encoded alone. With ``log=0`` lines are ordinary segments.
    """

    log: int = 512

    def __post_init__(self) -> None:
        check_log(self.log)

    def plan(self, segments: Sequence[Segment], store: SegmentStore, step: int) -> list[Unit]:
        return group_units(segments, store, self.log)


def group_units(segments: Sequence[Segment], store: SegmentStore, log: int) -> list[Unit]:
    """Make a unit of each static group and each other segment; a log line follows at most ``log`` tokens of lines."""
    group_of, prefixes = store.graph.group_of, log_units(store, log)
    parts = [(group_of[segment.id], segment.id, store.tokens(segment.id)) for segment in segments]
    units: list[Unit] = []
    for group, run in groupby(parts, key=itemgetter(0)):
        tokens = list(map(itemgetter(1, 2), run))
        if group.static_since is not None:
            units.append(Unit.of("static_group", tokens))
            continue
        for part in tokens:
            units.append(Unit.of("segment", [part], prefixes.get(part[0], ())))
    return units
