"""Kinds of values that each setting accepts: kinds of its values in ``configs``, and `EXTRA_KINDS`. Loads no torch."""

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


class ValueKind(StrEnum):
    """Kind of a value, as error messages name it."""

    GROUP = "settings below this key (KEY.NAME=VALUE)"
    LIST = "a list"
    BOOL = "true or false"
    INT = "a whole number"
    NUMBER = "a number"
    TEXT = "text"
    EMPTY = "empty text"
    NULL = "null"
    UNKNOWN = "another kind of value"


EXTRA_KINDS = {  # kinds of values that a setting accepts besides the kind of its default
    ValueKind.TEXT: (
        *("env.data", "env.record", "env.render", "env.rewording", "env.simulator"),
        *("env.thor.display", "env.thor.executable", "env.thor.platform"),
        *("eval.ray.address", "eval.resume", "eval.shard", "model.adapter", "model.quantization", "model.tokenizer"),
        *("prompt.focus", "prompt.start"),
        *("wandb.entity", "wandb.group", "wandb.name", "bertscore", "data", "overrides[]"),
    ),
    ValueKind.LIST: ("overrides",),  # a key of a run's saved config
    ValueKind.INT: (
        *("env.limit", "env.max_steps", "env.thor.gpu", "eval.episodes", "eval.shard", "eval.threads"),
        *("limit", "max_tokens"),
        *("latency.age", "latency.candidates", "latency.store", "latency.churn[]", "prompt.preamble"),
    ),
    ValueKind.NUMBER: ("engine.chunk_megabytes", "engine.link_gigabytes"),
    ValueKind.BOOL: ("latency.plot", "prompt.goal", "replay"),
    ValueKind.NULL: ("eval.frames", "eval.launcher", "eval.workers", "latency.candidates", "planner.retry"),
    ValueKind.EMPTY: ("prompt.instruction",),
}
WIDENING = {ValueKind.NUMBER: {ValueKind.INT}}  # allowed kind: further kinds that are accepted in its place
ARGUMENT_WIDENING = {ValueKind.TEXT: {ValueKind.LIST, ValueKind.EMPTY}}  # as `WIDENING`, for component arguments
WrongValue = tuple[str, Any, frozenset[ValueKind]]  # dotted key, value, allowed kinds


def check_kinds(values: Mapping[str, Any], source: str = "", only: Collection[ValueKind] = tuple(ValueKind)) -> None:
    """Raise ConfigError for the first value of a wrong kind. Checks only settings that allow a kind in ``only``."""
    for key, value, allowed in wrong_values(values):
        if not allowed.isdisjoint(only):
            raise ConfigError(_message(key, value, allowed, source))


def wrong_values(values: Mapping[str, Any], place: str = "") -> Iterator[WrongValue]:
    """Yield the values whose kind their setting does not allow. Keys that are not in ``configs`` are skipped."""
    target = values.get(TARGET)
    for key, value in values.items():
        path = f"{place}.{key}".lstrip(".")
        allowed = allowed_kinds().get(path, frozenset()) | allowed_kinds().get(f"{target}.{key}", frozenset())
        if allowed and not _is_allowed(path, value, allowed, target is not None):
            yield path, value, allowed | allowed_kinds().get(f"{path}[]", frozenset())
        elif isinstance(value, Mapping):
            yield from wrong_values(value, path)
        elif isinstance(value, list):
            for number, element in enumerate(value):
                if isinstance(element, Mapping):
                    yield from wrong_values(element, f"{path}.{number}")


def kind_of(value: Any) -> ValueKind:
    if value is None:
        return ValueKind.NULL
    if isinstance(value, str):
        return ValueKind.TEXT if value.strip() else ValueKind.EMPTY
    for kind, cls in ((ValueKind.BOOL, bool), (ValueKind.INT, int), (ValueKind.GROUP, Mapping), (ValueKind.LIST, list)):
        if isinstance(value, cls):
            return kind
    return ValueKind.NUMBER if isinstance(value, float) and math.isfinite(value) else ValueKind.UNKNOWN


@cache
def allowed_kinds() -> Mapping[str, frozenset[ValueKind]]:
    """Map ``KEY`` to its allowed kinds, ``KEY[]`` to those of list elements, ``CLASS.NAME`` to those of an argument."""
    by_key: dict[str, set[ValueKind]] = defaultdict(set)
    root = Path(str(files("configs")))
    for file in root.rglob("*.yaml"):
        group = file.parent.relative_to(root).parts
        if group != ("phases",):  # this folder holds scenarios, not settings
            tree = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
            for number in range(len(group)):
                by_key[".".join(group[: number + 1])].add(ValueKind.GROUP)
            _collect({key: value for key, value in tree.items() if key not in ("defaults", "hydra")}, by_key, group)
    for kind, keys in EXTRA_KINDS.items():
        for key in keys:
            by_key[key].add(kind)
    return {key: frozenset(kinds) for key, kinds in by_key.items()}


def _collect(tree: Mapping[str, Any], by_key: Mapping[str, set[ValueKind]], place: Collection[str]) -> None:
    base = tree.get(TARGET, ".".join(place))
    for key, value in tree.items():
        path = f"{base}.{key}".lstrip(".")
        by_key[path].add(kind_of(value))
        if isinstance(value, Mapping):
            _collect(value, by_key, [path])
        for element in value if isinstance(value, list) else ():
            by_key[f"{path}[]"].add(kind_of(element))


def _is_allowed(key: str, value: Any, allowed: Collection[ValueKind], is_argument: bool) -> bool:
    """Return whether a value has an allowed kind. A single element is accepted in place of a list."""
    if is_argument and ValueKind.GROUP not in allowed and (value is None or not {*allowed} - {ValueKind.NULL}):
        return True
    elements = allowed_kinds().get(f"{key}[]", frozenset())
    if isinstance(value, list) and ValueKind.LIST in allowed and elements:
        return all(_has_kind(element, elements, is_argument) for element in value)
    return _has_kind(value, {*allowed, *elements}, is_argument)


def _has_kind(value: Any, allowed: Collection[ValueKind], is_argument: bool) -> bool:
    tables = [WIDENING, ARGUMENT_WIDENING] if is_argument else [WIDENING]
    return kind_of(value) in {*allowed}.union(*(table.get(kind, ()) for table in tables for kind in allowed))


def _message(key: str, value: Any, allowed: Collection[ValueKind], source: str) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    kinds_text = " or ".join(kind for kind in ValueKind if kind in allowed)
    needs_quotes = ValueKind.TEXT in allowed and isinstance(value, bool | int | float)
    hint = f'; to give it as text, write "{as_override(key, text)}"' if needs_quotes and not source else ""
    return f"{source}{': ' if source else ''}{key}={text:.80} does not work; give {kinds_text}{hint}"
