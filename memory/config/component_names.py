"""Component names: checks of the class names in a config, made without importing a class."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from keep_agent.errors import ConfigError
from memory.config.choices import new_name

TARGET = "_target_"
STAGES = ("retrieval", "construction", "recompute", "loading", "retention", "storage")
METHOD = "memory.method.MemoryMethod"
PARTS = (
    "memory.kv_cache.pinned_blocks.PinnedPool",
    "memory.segments.groups.Grouping",
    "memory.recompute.multi_hop.Schedule",
)


def is_own(name: str) -> bool:
    """Tell whether ``name`` is the dotted name of a class of one of the six stages, or of another part of a method."""
    words = name.split(".")
    in_a_stage = len(words) == 4 and words[0] == "memory" and words[1] in STAGES
    return name in (METHOD, *PARTS) or (in_a_stage and all(word.isidentifier() for word in words))


def check_names(values: Any, known: Collection[str] = (), source: str = "this config") -> None:
    """Raise ConfigError unless all classes in ``values``, at any depth, are components of this package or ``known``.

    Use it for values from a file; nothing is imported.
    """
    for place, name in named_classes(values):
        if not isinstance(name, str) or not (is_own(name) or name in known):
            raise ConfigError(
                f"{source} names {name!r} under {place}, which is not a component of this package; if it is a class of "
                f"yours, give {place}={name}, or the option that set it, on the command line too{new_name(name)}"
            )


def check_classes(values: Any, place: str = "") -> None:
    """Raise ConfigError for a class in ``values``, at any depth, whose name shows that it cannot be a component.

    Nothing is imported; `memory.config.components.component` later checks that the class has a stage's methods.
    """
    for key, name in named_classes(values, place):
        if not isinstance(name, str) or not all(word.isidentifier() for word in name.split(".")) or "." not in name:
            raise ConfigError(f"{key}={name!r} is not a dotted name of a class: give one, such as {METHOD}")
        if not _exists(name):
            raise ConfigError(
                f"{key}={name!r} is not a component: name a class with the methods of a stage, such as those in "
                f"memory/{', memory/'.join(STAGES)}, or a class of your own in an importable module"
                f"{new_name(name)}"
            )


def _exists(name: str) -> bool:
    """Tell whether ``name`` is a class of this package, or in an installed package outside the standard library."""
    package, *inner, last = name.split(".")
    if package != "memory":
        return package not in sys.stdlib_module_names and (package in sys.modules or find_spec(package) is not None)
    file = Path(__file__).parents[1].joinpath(*inner).with_suffix(".py")
    return is_own(name) and file.is_file() and bool(re.search(rf"^class {last}\b", file.read_text("utf-8"), re.M))


def named_classes(values: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every ``_target_`` at any depth, with its dotted key."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            below = f"{place}.{key}".lstrip(".")
            if key == TARGET:
                yield below, value
            yield from named_classes(value, below)
    elif isinstance(values, list):
        for number, value in enumerate(values):
            yield from named_classes(value, f"{place}.{number}")
