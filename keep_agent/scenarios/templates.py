"""``${PHASE.messages[AGENT]}`` in a text: what was said in an earlier phase, as the agent heard it. Nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

ANY = re.compile(r"\$\{[^}]*\}?")
WHOLE = re.compile(r"\$\{([a-z0-9_]+)\.([a-z0-9_]+)\[([a-z0-9_]+)\]\}")
FIELD = "messages"
SHAPE = f"${{PHASE.{FIELD}[AGENT]}}"


def references(text: str) -> Iterator[tuple[str, str]]:
    """The phases and agents that templates in ``text`` name. Raises ValueError for any other template."""
    for found in ANY.findall(text):
        parts = WHOLE.fullmatch(found)
        if parts is None:
            raise ValueError(f"{found} is no template; write {SHAPE}")
        if parts[2] != FIELD:
            raise ValueError(f"{found} asks for {parts[2]!r}, which a phase does not have; write {SHAPE}")
        yield parts[1], parts[3]


def fill(text: str, transcript: Callable[[str, str], str]) -> str:
    """``text`` with ``transcript(phase, agent)`` in place of each template. What is put in is not looked at again."""
    return WHOLE.sub(lambda parts: transcript(parts[1], parts[3]), text)
