"""Settings of a server. Loads no torch, so that invalid ones are refused before a model is loaded."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from keep_agent.errors import ConfigError
from keep_agent.server.auth.access_rules import AGENTS
from keep_agent.server.limits.request_limits import Limits

MEMORY_BYTES = 16 << 20  # of an uploaded memory
MOST = 1 << 31  # of any count


@dataclass(frozen=True)
class ChatLimits:
    """Limits of conversations and scenarios.

    :param prompt_chars: longest prompt; the model's positions limit it, too
    :param max_tokens: most tokens that a request may generate; ``tokens``: default of a request
    :param stops: most stop strings of a request, each of at most ``stop_chars``
    :param scenarios: most scenarios at once; ``scenario_agents``, ``scenario_turns``: of each
    """

    prompt_chars: int = 200_000
    max_tokens: int = 4096
    tokens: int = 256
    stops: int = 8
    stop_chars: int = 200
    scenarios: int = 16
    scenario_agents: int = 16
    scenario_turns: int = 200
    scenario_tokens: int = 256  # of a turn
    scenario_templates: int = 64  # each inserts a whole phase's transcript

    def __post_init__(self) -> None:
        if min(vars(self).values()) < 1 or self.tokens > self.max_tokens:
            raise ConfigError(f"{self}: each must be 1 or more, and tokens no more than max_tokens")


@dataclass(frozen=True)
class AgentLimits:
    """Limits of planning agents.

    :param agents: most agents that tokens for all agents create; a token for certain agents may always create those, so
        it does not learn the number of other agents
    :param awake: most agents with segments and KV blocks in memory; the least recently used are put to sleep
    :param things: most things that an agent remembers
    """

    agents: int = 1000
    awake: int = 64
    things: int = 5000

    @property
    def memory_values(self) -> int:
        """Most JSON values of an uploaded memory: several times as many as a saved one has."""
        return 200 * self.things + 10_000

    def __post_init__(self) -> None:
        for name, count in asdict(self).items():
            if not 1 <= count <= MOST:
                raise ConfigError(f"{name}={count} does not work; give a whole number from 1 to {MOST}")


@dataclass(frozen=True)
class Settings:
    """Settings of a server.

    :param chat_bytes: most bytes of conversations' KV rows in memory; ``disk_bytes``: on disk
    :param sockets: most websockets at once, of which one token may hold three quarters
    :param agent_sockets: most websockets of one agent
    :param trace: write run folders of planning agents for the viewer
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
