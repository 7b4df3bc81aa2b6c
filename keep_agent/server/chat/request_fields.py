"""Fields of chat requests: the agent, limits, and fields of OpenAI's and Anthropic's APIs that are ignored here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

from fastapi import Header
from pydantic import BaseModel, ConfigDict, model_validator

from keep_agent.server.auth.tokens import Access
from keep_agent.server.error_handlers import NotFound, Refused
from keep_agent.server.settings import ChatLimits
from memory.files.names import is_safe, safe_id

ANY_VALUE = object()  # in `ignored_values`: the field is ignored whatever its value
HEADER = "X-Agent-ID"
AgentHeader = Annotated[str | None, Header(alias=HEADER)]
RESERVED = ("persist_", "coord_")  # prefixes of scenario agents' ids, not for other requests


class Unsupported(Refused):
    """A field with a value that this server does not support."""


class BadAgent(Refused):
    """A request without an agent, or for an agent of a scenario."""


class VendorModel(BaseModel):
    """Base of vendor APIs' requests. Drops nulls. Rejects unknown fields unless `ignored_values` has their value."""

    model_config = ConfigDict(extra="allow")
    ignored_values: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        return {name: value for name, value in values.items() if value is not None}

    @model_validator(mode="after")
    def _check_extra(self) -> Self:
        for name, value in (self.model_extra or {}).items():
            allowed = self.ignored_values.get(name, ())
            if ANY_VALUE not in allowed and not _is_in(_without_nulls(value), allowed):
                remedy = f"leave it out, or use {allowed[0]!r}" if allowed else "leave it out"
                reason = " (answers are greedy: temperature=0)" if name == "temperature" else ""
                raise Unsupported(f"{name[:64]} is not supported{reason}: {remedy}")
        return self


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nulls(member) for name, member in value.items() if member is not None}
    return [_without_nulls(member) for member in value] if isinstance(value, list) else value


def _is_in(value: Any, allowed: tuple[Any, ...]) -> bool:
    """Compare by value and type: ``True`` is not 1."""
    return any(value == item and isinstance(value, bool) == isinstance(item, bool) for item in allowed)


def join_text(content: str | Sequence[Any]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def check_model(name: str, model: str) -> None:
    if name != model:
        raise NotFound(f"model {name[:64]!r} is not served; use {model!r}")


def most_tokens(limits: ChatLimits, *values: int | None) -> int:
    """Return the first of ``values`` that is not None, else ``limits.tokens``. Raises Unsupported above the limit."""
    most = next((number for number in values if number is not None), limits.tokens)
    if most > limits.max_tokens:
        raise Unsupported(f"max_tokens={most} is more than a request may have ({limits.max_tokens}); ask for less")
    return most


def stops_of(limits: ChatLimits, values: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the stop strings. Raises Unsupported for too many, too long or empty ones."""
    stops = (values,) if isinstance(values, str) else tuple(values or ())
    if len(stops) > limits.stops or any(not 0 < len(stop) <= limits.stop_chars for stop in stops):
        raise Unsupported(f"use up to {limits.stops} stop strings, each of 1 to {limits.stop_chars} characters")
    return stops


def agent_of(access: Access, *ids: str | None, hints: Sequence[str | None] = ()) -> str:
    """Return the agent of a request: the first of ``ids``, else the first usable hint, else the token's only agent.

    ``hints`` are fields that clients also fill for other purposes; a usable one is an agent id that the token may use.
    Raises BadAgent for no id or a reserved one, ConfigError for an invalid one, Forbidden if the token is not for it.
    """
    usable = (hint for hint in hints if hint and is_safe(hint) and not hint.startswith(RESERVED) and access.may(hint))
    agent = next((name for name in (*ids, *usable) if name is not None), access.only_agent)
    if agent is None:
        raise BadAgent(f"the request names no agent: send the id of the agent in the header {HEADER}")
    safe_id(access.require(agent))
    if agent.startswith(RESERVED):
        raise BadAgent(f"ids that begin with {' or '.join(RESERVED)} belong to agents of scenarios; use another id")
    return agent
