"""How much a conversation may be."""

from __future__ import annotations

from dataclasses import dataclass

from keep_agent.errors import ConfigError


@dataclass(frozen=True)
class ChatLimits:
    """
    :param prompt_chars: of a prompt; what the model can read bounds it as well
    :param max_tokens: that a request may ask for; ``tokens`` are what one gets that does not say
    :param stops: texts that end an answer, at most, each of ``stop_chars`` at most
    :param scenarios: at once; with so many agents, and turns in all, at most
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
    scenario_templates: int = 64  # each puts in a whole phase's transcript

    def __post_init__(self) -> None:
        if min(vars(self).values()) < 1 or self.tokens > self.max_tokens:
            raise ConfigError(f"{self}: each must be 1 or more, and tokens no more than max_tokens")
