"""Settings of a server. Loads no torch, so that what is wrong with them is said before a model is loaded."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from keep_agent.errors import ConfigError
from keep_agent.server.auth.access_rules import AGENTS
from keep_agent.server.chat.settings import ChatLimits
from keep_agent.server.limits.request_limits import Limits

MEMORY_BYTES = 16 << 20  # of a memory that is put in
MOST = 1 << 31  # of anything that is counted


@dataclass(frozen=True)
class AgentLimits:
    """
    :param agents: there are at most, of those that tokens for all agents create; a token for certain agents may always
        create these, so it does not learn how many others there are
    :param awake: of them have segments and keys and values in memory; the least recently used go to sleep
    :param things: that an agent remembers
    """

    agents: int = 1000
    awake: int = 64
    things: int = 5000

    @property
    def memory_values(self) -> int:
        """In the JSON of a memory that is put in: several times as many as one has that was saved."""
        return 200 * self.things + 10_000

    def __post_init__(self) -> None:
        for name, count in asdict(self).items():
            if not 1 <= count <= MOST:
                raise ConfigError(f"{name}={count} does not work; give a whole number from 1 to {MOST}")


@dataclass(frozen=True)
class Settings:
    """
    :param chat_bytes: of conversations' rows in memory; ``disk_bytes`` of them on the disk
    :param sockets: websockets at once, of which one token holds three quarters at most
    :param agent_sockets: of them for one agent
    :param trace: planning agents leave run folders for the viewer
    """

    limits: Limits = field(default_factory=lambda: Limits(large={f"{AGENTS}/*/memory": MEMORY_BYTES}))
    agents: AgentLimits = field(default_factory=AgentLimits)
    chat: ChatLimits = field(default_factory=ChatLimits)
    chat_bytes: int | None = 2 << 30
    disk_bytes: int | None = 20 << 30
    sockets: int = 256
    agent_sockets: int = 8
    trace: bool = True
    viewer: bool = True
