"""KEEP Agent: a household robot's planner whose memory is the language model's KV cache."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from envs.fact import Fact
    from envs.outcome import Outcome
    from keep_agent.agent.agent import Agent
    from keep_agent.agent.client import Client
    from keep_agent.agent.types import Decision, Planning

_MODULES = {
    "Agent": "keep_agent.agent.agent", "Client": "keep_agent.agent.client", "Decision": "keep_agent.agent.types",
    "Fact": "envs.fact", "Outcome": "envs.outcome", "Planning": "keep_agent.agent.types",
}  # fmt: skip
__all__ = ["Agent", "Client", "Decision", "Fact", "Outcome", "Planning", "__version__"]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, so that environments need no torch, and `Client` needs no gymnasium."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from keep_agent.startup import start_up

    start_up()
    with suppress(ModuleNotFoundError):  # without gymnasium there are no environments to register
        from envs.worlds import register_worlds

        register_worlds()
    globals()[name] = getattr(import_module(_MODULES[name]), name)
    return globals()[name]


if sys.modules.get("gymnasium"):  # `gymnasium.make("keep_agent:Alfred-v0")` imports this package to register the ids
    from keep_agent.startup import check_packages

    check_packages()
    import_module("envs.worlds")  # importing it registers the ids; an import in progress does so at its end
