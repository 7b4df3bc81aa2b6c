"""Names of components: the classes that a config may name, told apart without importing anything."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from keep_agent.errors import ConfigError

TARGET = "_target_"
STAGES = ("retrieval", "construction", "recompute", "loading", "retention", "storage")
METHOD = "memory.method.MemoryMethod"
PARTS = ("memory.frozen.FrozenPool", "memory.graph.Grouping", "memory.schedule.Schedule")


def is_own(name: str) -> bool:
    """Is it the dotted name of a class in a file of one of the six stages, or of another part of a method?"""
    words = name.split(".")
    in_a_stage = len(words) == 4 and words[0] == "memory" and words[1] in STAGES
    return name in (METHOD, *PARTS) or (in_a_stage and all(word.isidentifier() for word in words))


def check_names(values: Any, known: Collection[str] = (), source: str = "this config") -> None:
    """Raises ConfigError unless every class named in ``values``, at any depth, is ours or one of ``known``.

    For values that were read from a file; nothing is imported.
    """
    for place, name in named_classes(values):
        if not isinstance(name, str) or not (is_own(name) or name in known):
            raise ConfigError(
                f"{source} names {name!r} under {place}, which is no component of this package; if it is a class of "
                f"yours, give {place}={name}, or what chose it, on the command line too"
            )


def named_classes(values: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every ``_target_`` at any depth, with its dotted key."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            below = f"{place}.{key}".lstrip(".")
            if key == TARGET:
                yield below, value
            yield from named_classes(value, below)
    elif isinstance(values, list):
        for number, value in enumerate(values):
            yield from named_classes(value, f"{place}.{number}")
