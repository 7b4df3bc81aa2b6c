"""Settings of a server. This module loads no torch: invalid settings are rejected before a model is loaded."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from keep_agent.errors import ConfigError
from keep_agent.server.auth.access_rules import AGENTS
from keep_agent.server.limits.request_limits import RequestLimits

MEMORY_BYTES = 16 << 20  # maximum bytes of an uploaded memory
MAX_AGENT_LIMIT = 1 << 31  # maximum value of each limit of `AgentLimits`


@dataclass(frozen=True)
class ChatLimits:
    """Maximum numbers for conversations and scenarios."""

    prompt_chars: int = 200_000  # characters of a prompt; its tokens are also limited, by the model's positions
    max_tokens: int = 4096  # tokens that a request may generate
    tokens: int = 256  # tokens that a request without a maximum may generate
    stops: int = 8  # stop strings of a request
    stop_chars: int = 200  # characters of a stop string
    scenarios: int = 16  # scenarios that run at once
    scenario_agents: int = 16  # agents of a scenario
    scenario_turns: int = 200  # turns of a scenario
    scenario_tokens: int = 256  # tokens that a turn may generate
    scenario_templates: int = 64  # templates in a scenario's texts; each inserts an agent's transcript of a phase

    def __post_init__(self) -> None:
        if min(vars(self).values()) < 1 or self.tokens > self.max_tokens:
            raise ConfigError(f"{self}: each must be 1 or more, and tokens no more than max_tokens")


@dataclass(frozen=True)
class AgentLimits:
    """Maximum numbers for planning agents."""

    agents: int = 1000  # agents on the server; a token for named agents may create these beyond this number
    awake: int = 64  # agents in memory with segments and KV blocks; the least recently used are unloaded
    things: int = 5000  # things (objects and receptacles) that an agent remembers

    @property
    def memory_values(self) -> int:
        return 200 * self.things + 10_000  # JSON values of an uploaded memory; real memories have far fewer

    def __post_init__(self) -> None:
        for name, count in asdict(self).items():
            if not 1 <= count <= MAX_AGENT_LIMIT:
                raise ConfigError(f"{name}={count} does not work; give a whole number from 1 to {MAX_AGENT_LIMIT}")


@dataclass(frozen=True)
class Settings:
    limits: RequestLimits = field(default_factory=lambda: RequestLimits(large={f"{AGENTS}/*/memory": MEMORY_BYTES}))
    agents: AgentLimits = field(default_factory=AgentLimits)
    chat: ChatLimits = field(default_factory=ChatLimits)
    chat_bytes: int | None = 2 << 30  # maximum bytes of conversations' KV rows in memory
    disk_bytes: int | None = 20 << 30  # maximum bytes of conversations' KV rows on disk
    sockets: int = 256  # concurrent websockets; one token may open three quarters of them
    agent_sockets: int = 8  # concurrent websockets of one agent
    trace: bool = True  # write run folders of planning agents for the viewer
    viewer: bool = True
