"""KEEP Agent: a household robot's planner whose memory is the language model's KV cache."""

from contextlib import suppress

from keep_agent.waiting import wait_awake

__version__ = "0.1.0"

wait_awake()

with suppress(ModuleNotFoundError):  # a box that only trains has no gymnasium
    from gymnasium.envs.registration import register

    register(id="Alfred-v0", entry_point="envs.alfred.env:AlfredEnv")
    register(id="WatchAndHelp-v0", entry_point="envs.wah.env:WatchAndHelpEnv")
