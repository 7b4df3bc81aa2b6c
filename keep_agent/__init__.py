"""KEEP Agent: a household robot's planner whose memory is the language model's KV cache."""

from gymnasium.envs.registration import register

__version__ = "0.1.0"

register(id="Alfred-v0", entry_point="envs.alfred.env:AlfredEnv")
