"""Whose conversation a request belongs to."""

from __future__ import annotations

from collections.abc import Sequence

from keep_agent.server.problems import Refused
from keep_agent.server.tokens import Access
from memory.disk.names import checked

HEADER = "X-Agent-ID"
TAKEN = ("persist_", "coord_")  # ids of agents of scenarios begin so (`Scenario.memory_key`)


class BadAgent(Refused):
    """A request that does not say whose rows to use, or names some that are not to be talked with."""


def agent_of(access: Access, *named: str | None, hints: Sequence[str | None] = ()) -> str:
    """The first id that is ``named``, else the first of ``hints`` that the token may use, else the token's only agent.

    :raises Forbidden: the token is not for this agent, whether there is one or not
    :raises ConfigError: the id is no safe name
    """
    usable = (hint for hint in hints if hint is not None and access.may(hint))
    agent = next((name for name in (*named, *usable) if name is not None), access.only)
    if agent is None:
        raise BadAgent(f"whose memory is it? Name an agent by the header {HEADER}")
    checked(access.require(agent))
    if agent.startswith(TAKEN):
        raise BadAgent(f"ids that begin with {' or '.join(TAKEN)} are those of scenarios' agents; use another")
    return agent
