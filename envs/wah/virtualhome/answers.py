"""Answers of the simulator: parsing and checks. All functions raise `SimulatorAnswer` for an invalid answer.

Fields: Communication.cs (NetworkResponse) of the simulator's source, xavierpuigf/virtualhome_unity.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envs.wah.virtualhome.errors import SimulatorAnswer, SimulatorRefusal, excerpt

Graph = dict[str, Any]  # nodes and edges, lists of objects


@dataclass(frozen=True, slots=True)
class Answer:
    """Fields of an answer; None for those that the action does not set."""

    success: bool
    message: str | None = None
    value: int | None = None
    message_list: list[str] | None = None


_TYPES = {"success": bool, "message": str, "value": int, "message_list": list}


def parse(fields: Mapping[str, Any]) -> Answer:
    """Check the types of the fields; ``success`` is required."""
    if fields.get("success") is None:
        raise SimulatorAnswer("the answer has no field 'success'", status=200)
    known = {name: fields[name] for name in _TYPES if fields.get(name) is not None}
    for name, value in known.items():
        if type(value) is not _TYPES[name]:  # isinstance would accept a bool as int
            raise SimulatorAnswer(f"{name} is no {_TYPES[name].__name__}: {excerpt(repr(value))}", status=200)
    return Answer(**known)


def check_success(answer: Answer) -> None:
    """Raise `SimulatorRefusal` unless the action succeeded."""
    if not answer.success:
        raise SimulatorRefusal(f"success=false: {excerpt(answer.message or '')}", status=200)


def count(answer: Answer) -> int:
    """Return the field ``value``."""
    check_success(answer)
    if answer.value is None:
        raise SimulatorAnswer("the answer has no field 'value'", status=200)
    return answer.value


def graph(answer: Answer) -> Graph:
    """Return the message as a graph: objects in the lists ``nodes`` and ``edges``."""
    check_success(answer)
    try:
        content = json.loads(answer.message or "")
    except (ValueError, RecursionError) as error:
        raise SimulatorAnswer(
            f"the graph is not JSON ({error}): {excerpt(answer.message or '')}", status=200
        ) from error
    if not isinstance(content, dict) or not all(_objects(content.get(name)) for name in ("nodes", "edges")):
        raise SimulatorAnswer(f"the graph has no lists of nodes and edges: {excerpt(repr(content))}", status=200)
    return content


def messages(answer: Answer) -> Any:
    """Return the messages of a successful expansion: JSON, or the text if it is no JSON."""
    check_success(answer)
    return _lenient(answer.message)


def report(answer: Answer) -> tuple[bool, Any]:
    """Return whether a script ran, and its report: JSON, or the text if it is no JSON."""
    return answer.success, _lenient(answer.message)


def images(answer: Answer) -> list[bytes]:
    """Return one PNG file per camera."""
    check_success(answer)
    if answer.message_list is None:
        raise SimulatorAnswer("the answer has no field 'message_list'", status=200)
    try:
        return [base64.b64decode(image, validate=True) for image in answer.message_list]
    except (ValueError, TypeError) as error:
        raise SimulatorAnswer(f"an image is not base64 ({error})", status=200) from error


def _objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _lenient(message: str | None) -> Any:
    try:
        return json.loads(message or '""')
    except (ValueError, RecursionError):
        return message
