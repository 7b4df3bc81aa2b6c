"""Action log: each line of what the agent did is encoded behind the lines before it, in the prompt or not."""

from __future__ import annotations

from dataclasses import replace

from keep_agent.errors import ConfigError
from memory.prompt.units import Unit
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
