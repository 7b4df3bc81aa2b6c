"""Units of what the agent has done: a line of the log stands behind the lines before it, in the prompt or not."""

from __future__ import annotations

from dataclasses import replace

from keep_agent.errors import ConfigError
from memory.segments.segment import Segment
from memory.segments.store import SegmentStore
from memory.stages import Unit

Lines = tuple[tuple[int, ...], ...]  # token ids


def check_log(tokens: int) -> None:
    """Raises `ConfigError`."""
    if tokens < 0:
        raise ConfigError(f"log={tokens} tokens cannot be: use 0 or more")


def lines(store: SegmentStore, most: int) -> dict[str, Lines]:
    """By id, what each line of the log is encoded behind: fewer than ``most`` tokens; 0: nothing."""
    found: dict[str, Lines] = {}
    before: Lines = ()
    for id in store.log if most else ():
        tokens = store.tokens(id)
        if sum(map(len, before)) + len(tokens) > most:
            before = ()
        found[id], before = before, (*before, tokens)
    return found


def alone(segment: Segment, store: SegmentStore, log: dict[str, Lines]) -> Unit:
    """The segment as a unit of its own, behind what ``log`` has for it."""
    return replace(Unit.of("segment", [(segment.id, store.tokens(segment.id))]), behind=log.get(segment.id, ()))
