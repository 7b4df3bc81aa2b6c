"""Models of what is asked for: a wrong body gets one error. One for each wrong value of a large body takes seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, model_validator

from keep_agent.errors import did_you_mean

Item = TypeVar("Item")


class First(FailFast):
    """Ends with the first wrong item. With a hash, so that a union may hold a list of it."""

    __hash__ = object.__hash__


Items = Annotated[list[Item], First()]  # a list of a request


class Strict(BaseModel):
    """Base of requests. Of fields that it does not have the first is refused by name."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _check_known(cls, given: Any) -> Any:
        names = cls.model_fields
        strange = next((name for name in given if name not in names), None) if isinstance(given, Mapping) else None
        if strange is not None:
            hint = did_you_mean(strange[:64], names)
            raise ValueError(f"there is no field {strange[:64]!r}; those known are {', '.join(names)}{hint}")
        return given
