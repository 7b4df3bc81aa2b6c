"""Rules for requests in a vendor's format: null means absent, and a field without effect is accepted at every depth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, model_validator

from keep_agent.server.error_handlers import NotFound, Refused

ANY = object()  # a field whose values never change the answer


class Unsupported(Refused):
    """A field that asks for something this server cannot do."""


class VendorModel(BaseModel):
    """Base of all objects in a vendor's request; since the nested ones have it too, its rules hold at every depth.

    ``neutral`` lists, for fields that are not supported, the values that change nothing. They are accepted and ignored.
    """

    model_config = ConfigDict(extra="allow")
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return {name: value for name, value in given.items() if value is not None}

    @model_validator(mode="after")
    def _check_others(self) -> Self:
        check_neutral(self.model_extra or {}, self.neutral)
        return self


def check_neutral(given: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]]) -> None:
    """Raises Unsupported for a field that is unknown, or whose value would change the answer."""
    for name, value in given.items():
        allowed = neutral.get(name, ())
        if ANY in allowed or _is_one_of(without_nulls(value), allowed):
            continue
        remedy = f"leave it out, or use {allowed[0]!r}" if allowed else "leave it out"
        reason = " (answers are greedy: temperature=0)" if name == "temperature" else ""
        raise Unsupported(f"{name[:64]} is not supported{reason}: {remedy}")


def without_nulls(value: Any) -> Any:
    """Remove the members of objects that are null."""
    if isinstance(value, Mapping):
        return {name: without_nulls(member) for name, member in value.items() if member is not None}
    return [without_nulls(member) for member in value] if isinstance(value, list) else value


def _is_one_of(value: Any, allowed: tuple[Any, ...]) -> bool:
    """Compare by value and kind: ``True`` is not 1."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed)


def check_model(asked: str, served: str) -> None:
    if asked != served:
        raise NotFound(f"model {asked[:64]!r} is not served; use {served!r}")
