"""Settings of a server. Loads no torch, so that invalid ones are rejected before a model is loaded."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from keep_agent.errors import ConfigError
from keep_agent.server.auth.access_rules import AGENTS
from keep_agent.server.limits.request_limits import RequestLimits

MEMORY_BYTES = 16 << 20  # most bytes of an uploaded memory
MAX_LIMIT = 1 << 31  # maximum of any count


@dataclass(frozen=True)
class ChatLimits:
    """Limits of conversations and scenarios."""

    prompt_chars: int = 200_000  # of a prompt; also limited by the model's positions
    max_tokens: int = 4096  # largest number of tokens that a request may generate
    tokens: int = 256  # tokens to generate if a request gives no number
    stops: int = 8  # most stop strings of a request
    stop_chars: int = 200  # of a stop string
    scenarios: int = 16  # running at once
    scenario_agents: int = 16  # of a scenario
    scenario_turns: int = 200
    scenario_tokens: int = 256  # of a turn
    scenario_templates: int = 64  # each inserts a whole phase's transcript

    def __post_init__(self) -> None:
        if min(vars(self).values()) < 1 or self.tokens > self.max_tokens:
            raise ConfigError(f"{self}: each must be 1 or more, and tokens no more than max_tokens")


@dataclass(frozen=True)
class AgentLimits:
    """Limits of planning agents."""

    agents: int = 1000  # created by tokens for all agents; tokens for certain agents are exempt
    awake: int = 64  # loaded, with segments and KV blocks; the least recently used are unloaded
    things: int = 5000  # things that an agent remembers

    @property
    def memory_values(self) -> int:
        return 200 * self.things + 10_000  # maximum of JSON values in an uploaded memory; a saved one has far fewer

    def __post_init__(self) -> None:
        for name, count in asdict(self).items():
            if not 1 <= count <= MAX_LIMIT:
                raise ConfigError(f"{name}={count} does not work; give a whole number from 1 to {MAX_LIMIT}")


@dataclass(frozen=True)
class Settings:
    limits: RequestLimits = field(default_factory=lambda: RequestLimits(large={f"{AGENTS}/*/memory": MEMORY_BYTES}))
    agents: AgentLimits = field(default_factory=AgentLimits)
    chat: ChatLimits = field(default_factory=ChatLimits)
    chat_bytes: int | None = 2 << 30  # of conversations' KV rows in memory
    disk_bytes: int | None = 20 << 30  # of conversations' KV rows on disk
    sockets: int = 256  # concurrent websockets, of which one token may have three quarters
    agent_sockets: int = 8  # websockets of one agent
    trace: bool = True  # write run folders of planning agents for the viewer
    viewer: bool = True
