"""Settings that are numbers, switches or words, checked before anything is built: so nothing is left half done."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from omegaconf import DictConfig, OmegaConf

from keep_agent.errors import ConfigError
from keep_agent.frames import ENDINGS

LEAST = {
    "env.stream": 1,
    "env.limit": 1,
    "env.max_steps": 1,
    "eval.episodes": 1,
    "eval.seed": 0,
    "eval.threads": 1,
    "eval.workers": 1,
    "prompt.budget": 1,
    "prompt.examples": 0,
}
OPTIONAL = ("env.limit", "env.max_steps", "eval.episodes", "eval.threads", "eval.workers")  # null: we choose
SWITCHES = ("eval.trace", "eval.progress")
OWN_SWITCHES = ("planner.retry", "prompt.goal")  # null, or not there: what a planner or model does by itself
WORDS = {  # or null, which is what a config without the key says
    "eval.frames": tuple(ENDINGS),
    "eval.launcher": ("local", "ray"),
}


def check_settings(
    config: DictConfig,
    least: Mapping[str, int] = LEAST,
    optional: Collection[str] = OPTIONAL,
    switches: Collection[str] = SWITCHES,
) -> None:
    """Raises ConfigError that names the setting, its value and what it may be."""
    for key, bound in least.items():
        value = OmegaConf.select(config, key)
        if value is None and key in optional:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < bound:
            null = ", or null" if key in optional else ""
            raise ConfigError(f"{key}={value} does not work; give a whole number from {bound} on{null}")
    for key in (*switches, *OWN_SWITCHES):
        value = OmegaConf.select(config, key)
        if not isinstance(value, bool) and (value is not None or key in switches):
            raise ConfigError(f"{key}={value} does not work; give true or false")
    for key, words in WORDS.items():
        value = OmegaConf.select(config, key)
        if value is not None and value not in words:
            raise ConfigError(f"{key}={value} does not work; give {', '.join(words)} or null")
