"""KEEP Agent: a household robot's planner whose memory is the language model's KV cache."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from keep_agent.openmp import wait_awake
from keep_agent.package_check import check_packages_at_start

__version__ = "0.2.0"

check_packages_at_start()
wait_awake()

with suppress(ModuleNotFoundError):  # a box that only trains has no gymnasium
    from gymnasium.envs.registration import register

    register(id="Alfred-v0", entry_point="envs.alfred.env:AlfredEnv")
    register(id="WatchAndHelp-v0", entry_point="envs.wah.env:WatchAndHelpEnv")
    register(id="ALFWorld-v0", entry_point="envs.alfworld.env:AlfworldEnv")

if TYPE_CHECKING:
    from envs.fact import Fact
    from envs.outcome import Outcome
    from keep_agent.agent.agent import Agent
    from keep_agent.agent.client import Client
    from keep_agent.agent.types import Decision, Planning

_PLACES = {
    "Agent": "keep_agent.agent.agent",
    "Client": "keep_agent.agent.client",
    "Decision": "keep_agent.agent.types",
    "Fact": "envs.fact",
    "Outcome": "envs.outcome",
    "Planning": "keep_agent.agent.types",
}
__all__ = ["Agent", "Client", "Decision", "Fact", "Outcome", "Planning", "__version__"]


def __getattr__(name: str) -> Any:
    """Loaded when it is asked for: an environment alone needs no torch, a client no model."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
