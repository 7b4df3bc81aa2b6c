"""Caller of a request: the agent whose conversation it belongs to."""

from __future__ import annotations

from collections.abc import Sequence

from keep_agent.server.auth.tokens import Access
from keep_agent.server.error_handlers import Refused
from memory.files.names import checked, is_safe

HEADER = "X-Agent-ID"
TAKEN = ("persist_", "coord_")  # ids of agents of scenarios begin so (`Scenario.memory_key`)


class BadAgent(Refused):
    """A request that does not say whose rows to use, or names some that are not to be talked with."""


def agent_of(access: Access, *named: str | None, hints: Sequence[str | None] = ()) -> str:
    """The first id that is ``named``, else the first usable one of ``hints``, else the token's only agent.

    A hint is usable if it can be an agent's id and the token is for that agent; vendors' clients fill these fields for
    other purposes. Every other hint counts as not given.

    :raises Forbidden: the token is not for this agent, whether there is one or not
    :raises ConfigError: the id is no safe name
    """
    usable = (hint for hint in hints if hint is not None and _can_be(hint) and access.may(hint))
    agent = next((name for name in (*named, *usable) if name is not None), access.only)
    if agent is None:
        raise BadAgent(f"whose memory is it? Name an agent by the header {HEADER}")
    checked(access.require(agent))
    if agent.startswith(TAKEN):
        raise BadAgent(f"ids that begin with {' or '.join(TAKEN)} are those of scenarios' agents; use another")
    return agent


def _can_be(agent: str) -> bool:
    return is_safe(agent) and not agent.startswith(TAKEN)
