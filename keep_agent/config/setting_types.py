"""Types of settings: from the defaults in ``configs``, and from `UNSET` for null defaults. Loads no torch."""

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
    """Kind of a value, as error messages name it."""

    GROUP = "settings of its own (KEY=VALUE below it)"
    LIST = "a list"
    SWITCH = "true or false"
    WHOLE = "a whole number"
    NUMBER = "a number"
    TEXT = "text"
    EMPTY = "empty text"
    NULL = "null"
    UNKNOWN = "another kind of value"


UNSET = {  # kinds of settings whose default is null, or of another kind
    Kind.TEXT: (
        *("env.data", "env.record", "env.render", "env.simulator"),
        *("env.thor.display", "env.thor.executable", "env.thor.platform"),
        *("eval.ray.address", "eval.resume", "eval.shard", "model.quantization", "model.tokenizer", "prompt.start"),
        *("wandb.entity", "wandb.group", "wandb.name", "bertscore", "data", "overrides[]"),
    ),
    Kind.LIST: ("overrides",),  # in the saved config of a run
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
WIDER = {Kind.NUMBER: {Kind.WHOLE}}  # kinds that are accepted in place of another
CLASS_TAKES = {Kind.TEXT: {Kind.LIST, Kind.EMPTY}}  # and for arguments of a component, which its class checks
Fault = tuple[str, Any, frozenset[Kind]]  # dotted key, value, allowed kinds


def check_kinds(values: Mapping[str, Any], source: str = "", only: Collection[Kind] = tuple(Kind)) -> None:
    """Raise ConfigError for the first value, ``only`` of these keys, whose kind differs from that in ``configs``."""
    for key, value, allowed in faults(values):
        if not allowed.isdisjoint(only):
            raise ConfigError(_message(key, value, allowed, source))


def faults(values: Mapping[str, Any], place: str = "") -> Iterator[Fault]:
    """Yield the values whose kind differs from that in ``configs``; keys missing there are skipped."""
    target = values.get(TARGET)
    for key, value in values.items():
        path = f"{place}.{key}".lstrip(".")
        allowed = kinds().get(path, frozenset()) | kinds().get(f"{target}.{key}", frozenset())
        if allowed and not _fits(path, value, allowed, target is not None):
            yield path, value, allowed | kinds().get(f"{path}[]", frozenset())
        elif isinstance(value, Mapping):
            yield from faults(value, path)
        elif isinstance(value, list):
            for number, element in enumerate(value):
                if isinstance(element, Mapping):
                    yield from faults(element, f"{path}.{number}")


def kind_of(value: Any) -> Kind:
    if value is None:
        return Kind.NULL
    if isinstance(value, str):
        return Kind.TEXT if value.strip() else Kind.EMPTY
    for kind, types in ((Kind.SWITCH, bool), (Kind.WHOLE, int), (Kind.GROUP, Mapping), (Kind.LIST, list)):
        if isinstance(value, types):
            return kind
    return Kind.NUMBER if isinstance(value, float) and math.isfinite(value) else Kind.UNKNOWN


@cache
def kinds() -> Mapping[str, frozenset[Kind]]:
    """Return the kinds of values by dotted key, of list elements by ``KEY[]``, and of component arguments by class."""
    by_key: dict[str, set[Kind]] = defaultdict(set)
    root = Path(str(files("configs")))
    for file in root.rglob("*.yaml"):
        group = file.parent.relative_to(root).parts
        if group != ("phases",):  # scenarios
            tree = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
            for number in range(len(group)):
                by_key[".".join(group[: number + 1])].add(Kind.GROUP)
            _collect({key: value for key, value in tree.items() if key not in ("defaults", "hydra")}, by_key, group)
    for kind, keys in UNSET.items():
        for key in keys:
            by_key[key].add(kind)
    return {key: frozenset(those) for key, those in by_key.items()}


def _collect(tree: Mapping[str, Any], by_key: Mapping[str, set[Kind]], place: Collection[str]) -> None:
    base = tree.get(TARGET, ".".join(place))
    for key, value in tree.items():
        path = f"{base}.{key}".lstrip(".")
        by_key[path].add(kind_of(value))
        if isinstance(value, Mapping):
            _collect(value, by_key, [path])
        for element in value if isinstance(value, list) else ():
            by_key[f"{path}[]"].add(kind_of(element))


def _fits(key: str, value: Any, allowed: Collection[Kind], is_argument: bool) -> bool:
    """Return whether a value or component argument has an allowed kind. A list may be given as its only element."""
    if is_argument and Kind.GROUP not in allowed and (value is None or not {*allowed} - {Kind.NULL}):
        return True
    elements = kinds().get(f"{key}[]", frozenset())
    if isinstance(value, list) and Kind.LIST in allowed and elements:
        return all(_is(element, elements, is_argument) for element in value)
    return _is(value, {*allowed, *elements}, is_argument)


def _is(value: Any, allowed: Collection[Kind], is_argument: bool) -> bool:
    tables = [WIDER, CLASS_TAKES] if is_argument else [WIDER]
    return kind_of(value) in {*allowed}.union(*(table.get(kind, ()) for table in tables for kind in allowed))


def _message(key: str, value: Any, allowed: Collection[Kind], source: str) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    kinds_text = " or ".join(kind for kind in Kind if kind in allowed)
    needs_quotes = Kind.TEXT in allowed and isinstance(value, bool | int | float)
    hint = f'; as text it is "{as_override(key, text)}"' if needs_quotes and not source else ""
    return f"{source}{': ' if source else ''}{key}={text:.80} does not work; give {kinds_text}{hint}"
