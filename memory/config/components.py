"""Components of a memory method, made from plain values of a config."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from inspect import signature
from typing import Any

from keep_agent.errors import ConfigError, KeepError
from memory.config.choices import new_name
from memory.config.component_names import METHOD, PARTS, TARGET
from memory.method import MEMBERS, MemoryMethod

VALUE_ERRORS = (TypeError, ValueError, AttributeError, LookupError, RuntimeError)  # raised by a class for bad arguments


def component(node: Mapping[str, Any], place: str = "memory") -> Any:
    """Make the object that ``node`` describes: its class under ``_target_``, arguments under the other keys.

    Arguments are plain values, or nodes of further components. The class must be `MemoryMethod`, one of `PARTS`, or
    have the methods of a stage: a config can name no function and no other class.

    :param place: dotted key of the node, for messages
    :raises ConfigError: the name is not that of such a class, or the class does not accept the arguments
    """
    kind = find_class(node.get(TARGET), place)
    for key in node:
        if renamed := new_name(f"{place}.{key}"):
            raise ConfigError(f"there is no setting '{place}.{key}'{renamed}")
    arguments = {key: _value(value, f"{place}.{key}") for key, value in node.items() if key != TARGET}
    try:
        signature(kind).bind(**arguments)
        return kind(**arguments)
    except KeepError:
        raise
    except VALUE_ERRORS as error:
        raise ConfigError(f"{place}: {kind.__name__} cannot be made: {str(error) or type(error).__name__}") from error


def _value(value: Any, place: str) -> Any:
    """Convert an argument: make a component of each node with a ``_target_`` in it."""
    if isinstance(value, Mapping):
        if TARGET in value:
            return component(value, place)
        return {key: _value(inner, f"{place}.{key}") for key, inner in value.items()}
    if isinstance(value, list):
        return [_value(inner, f"{place}.{number}") for number, inner in enumerate(value)]
    return value


def find_class(name: Any, place: str = "memory") -> type:
    """Import the class of a component by its dotted name. Raises ConfigError for any other name."""
    module, _, attribute = name.rpartition(".") if isinstance(name, str) else ("", "", "")
    if not module:
        raise ConfigError(f"{place}.{TARGET}={name!r} is not a dotted name of a class: give one, such as {METHOD}")
    try:
        kind = getattr(import_module(module), attribute, None)
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"{place}.{TARGET}={name!r} cannot be imported ({error}): correct the name{new_name(name)}"
        ) from error
    if not isinstance(kind, type) or not (name in PARTS or issubclass(kind, MemoryMethod) or _is_stage(kind)):
        raise ConfigError(
            f"{place}.{TARGET}={name!r} is not a component: name a class with the methods of a stage, such as those in "
            f"memory/{', memory/'.join(MEMBERS)}"
        )
    return kind


def _is_stage(kind: type) -> bool:
    return hasattr(kind, "capabilities") and any(callable(getattr(kind, names[0], None)) for names in MEMBERS.values())
