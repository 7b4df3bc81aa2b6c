"""Kinds of settings: what a value may be, read off the defaults in ``configs``, and from `UNSET` where these are null.

The same for a command line, an agent, a server and the saved config of a run. Loads no torch.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from keep_agent.config.literal import as_override
from keep_agent.errors import ConfigError
from memory.config.component_names import TARGET


class Kind(StrEnum):
    """A kind of value, in the words of an error message."""

    GROUP = "settings of its own (KEY=VALUE below it)"
    LIST = "a list"
    SWITCH = "true or false"
    WHOLE = "a whole number"
    NUMBER = "a number"
    TEXT = "text"
    EMPTY = "empty text"
    NULL = "null"
    OTHER = "another kind of value"


UNSET = {  # settings that are null by default, or may be of another kind than their default
    Kind.TEXT: (
        *("env.data", "env.record", "env.render", "env.simulator"),
        *("env.thor.display", "env.thor.executable", "env.thor.platform"),
        *("eval.ray.address", "eval.resume", "eval.shard", "model.quantization", "model.tokenizer", "prompt.start"),
        *("wandb.entity", "wandb.group", "wandb.name", "bertscore", "data", "overrides[]"),
    ),
    Kind.LIST: ("overrides",),  # those that a run has saved
    Kind.WHOLE: (
        *("env.limit", "env.max_steps", "env.thor.gpu", "eval.episodes", "eval.shard", "eval.threads"),
        *("limit", "max_tokens"),
        *("latency.age", "latency.candidates", "latency.store", "latency.churn[]"),
    ),
    Kind.NUMBER: ("engine.chunk_megabytes", "engine.link_gigabytes"),
    Kind.SWITCH: ("latency.plot", "prompt.goal", "replay"),
    Kind.NULL: ("eval.frames", "eval.launcher", "eval.workers", "latency.candidates", "planner.retry"),
    Kind.EMPTY: ("prompt.instruction",),
}
WIDER = {Kind.NUMBER: {Kind.WHOLE}}  # what is welcome, too, where a kind is
CLASS_TAKES = {Kind.TEXT: {Kind.LIST, Kind.EMPTY}}  # and for an argument of a component, whose class says the rest
Fault = tuple[str, Any, frozenset[Kind]]  # dotted key, value, what it may be


def check_kinds(values: Mapping[str, Any], source: str = "", only: Collection[Kind] = tuple(Kind)) -> None:
    """Raises ConfigError for the first value of another kind than ``configs`` have there.

    :param values: a config as plain values
    :param source: what it was read from, for the message
    :param only: look at settings that may be one of these: `Kind.GROUP` for ``memory``, ``env.thor``, ...
    """
    for key, value, wanted in faults(values):
        if not wanted.isdisjoint(only):
            raise ConfigError(_told(key, value, wanted, source))


def faults(values: Mapping[str, Any], place: str = "") -> Iterator[Fault]:
    """The values of another kind than ``configs`` have under their keys; keys that these lack are passed over."""
    target = values.get(TARGET)
    for key, value in values.items():
        here = f"{place}.{key}".lstrip(".")
        wanted = kinds().get(here, frozenset()) | kinds().get(f"{target}.{key}", frozenset())
        if wanted and not _fits(here, value, wanted, target is not None):
            yield here, value, wanted | kinds().get(f"{here}[]", frozenset())
        else:
            for inner, below in _below(value, here):
                yield from faults(inner, below)


def _below(value: Any, place: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """The settings that a value holds, with their dotted keys."""
    if isinstance(value, Mapping):
        yield value, place
    for number, element in enumerate(value if isinstance(value, list) else ()):
        if isinstance(element, Mapping):
            yield element, f"{place}.{number}"


def kind_of(value: Any) -> Kind:
    """The kind of a plain value."""
    if value is None:
        return Kind.NULL
    if isinstance(value, str):
        return Kind.TEXT if value.strip() else Kind.EMPTY
    for kind, types in ((Kind.SWITCH, bool), (Kind.WHOLE, int), (Kind.GROUP, Mapping), (Kind.LIST, list)):
        if isinstance(value, types):
            return kind
    return Kind.NUMBER if isinstance(value, float) and math.isfinite(value) else Kind.OTHER


@cache
def kinds() -> Mapping[str, frozenset[Kind]]:
    """By dotted key the kinds that ``configs`` have there; of a list's elements by ``KEY[]``.

    The arguments of a component stand under the name of its class, wherever it is used.
    """
    found: dict[str, set[Kind]] = defaultdict(set)
    root = Path(str(files("configs")))
    for file in root.rglob("*.yaml"):
        group = file.parent.relative_to(root).parts
        if group != ("phases",):  # scenarios
            tree = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
            for number in range(len(group)):
                found[".".join(group[: number + 1])].add(Kind.GROUP)
            _collect({key: value for key, value in tree.items() if key not in ("defaults", "hydra")}, found, group)
    for kind, keys in UNSET.items():
        for key in keys:
            found[key].add(kind)
    return {key: frozenset(those) for key, those in found.items()}


def _collect(tree: Mapping[str, Any], found: Mapping[str, set[Kind]], place: Collection[str]) -> None:
    base = tree.get(TARGET, ".".join(place))
    for key, value in tree.items():
        here = f"{base}.{key}".lstrip(".")
        found[here].add(kind_of(value))
        if isinstance(value, Mapping):
            _collect(value, found, [here])
        for element in value if isinstance(value, list) else ():
            found[f"{here}[]"].add(kind_of(element))


def _fits(key: str, value: Any, wanted: Collection[Kind], argument: bool) -> bool:
    """Whether a value is of a kind that is ``wanted``. Where a list is, one element will do.

    :param argument: of a component
    """
    if argument and Kind.GROUP not in wanted and (value is None or not {*wanted} - {Kind.NULL}):
        return True
    elements = kinds().get(f"{key}[]", frozenset())
    if isinstance(value, list) and Kind.LIST in wanted and elements:
        return all(_is(one, elements, argument) for one in value)
    return _is(value, {*wanted, *elements}, argument)


def _is(value: Any, wanted: Collection[Kind], argument: bool) -> bool:
    more = [WIDER, CLASS_TAKES] if argument else [WIDER]
    return kind_of(value) in {*wanted}.union(*(table.get(kind, ()) for table in more for kind in wanted))


def _told(key: str, value: Any, wanted: Collection[Kind], source: str) -> str:
    shown = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    given = f"{key}={shown:.80}"
    may_be = " or ".join(kind for kind in Kind if kind in wanted)
    quoted = Kind.TEXT in wanted and isinstance(value, bool | int | float)
    hint = f'; as text it is "{as_override(key, shown)}"' if quoted and not source else ""
    return f"{source}{': ' if source else ''}{given} does not work; give {may_be}{hint}"
