"""Strict request models: only the first error of a body is reported, since collecting all errors may take seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, model_validator

from keep_agent.errors import did_you_mean

Item = TypeVar("Item")


class StopAtFirstError(FailFast):
    """Marker of lists whose validation stops at the first invalid item. In unions pydantic needs its hash."""

    __hash__ = object.__hash__


Items = Annotated[list[Item], StopAtFirstError()]  # a list in a request


class Strict(BaseModel):
    """Base of request models. Unknown fields are rejected; the error names the first of them."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _check_known(cls, values: Any) -> Any:
        names = cls.model_fields
        unknown = next((name for name in values if name not in names), None) if isinstance(values, Mapping) else None
        if unknown is not None:
            hint = did_you_mean(unknown[:64], names)
            raise ValueError(f"there is no field {unknown[:64]!r}; those known are {', '.join(names)}{hint}")
        return values
