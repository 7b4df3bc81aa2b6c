"""Settings of a composed config: checks of numbers, switches and words before a model is loaded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from envs.rewording import REWORDINGS
from envs.worlds import spec_of, without_simulator
from keep_agent.config.model_names import check_encoder, check_model
from keep_agent.config.setting_types import ValueKind, check_kinds
from keep_agent.errors import ConfigError, check_choice
from keep_agent.options import check_device
from keep_agent.rollout.frames import EXTENSIONS
from keep_agent.rollout.wandb_logging import MODES
from memory.config.choices import CONTEXTS, DTYPES, IMPORTANCE, INITS, LAYOUTS, QUANTIZATIONS, REDUCTIONS, TRANSPORTS
from memory.config.component_names import check_classes
from planners.base import POLICIES
from planners.prompts import preamble
from planners.prompts.formats import FOCI, FORMATS
from planners.prompts.styles import STYLES

COUNTS = ("env.stream", "env.limit", "env.max_steps", "eval.episodes", "eval.threads", "eval.workers", "prompt.budget")
LEAST = {**dict.fromkeys(COUNTS, 1), "eval.seed": 0, "prompt.examples": 0, "prompt.preamble": 0}
MOST = {"eval.threads": 4096, "prompt.preamble": preamble.MOST}
OPTIONAL = (  # null means a default
    "env.limit", "env.max_steps", "eval.episodes", "eval.threads", "eval.workers", "prompt.preamble",
)  # fmt: skip
SWITCHES = ("eval.trace", "eval.progress")
NULLABLE_SWITCHES = ("planner.retry", "prompt.goal")  # null or missing means the default of the planner or model
MODEL, DEVICE, ENCODER = "model.name", "model.device", "prompt.encoder"
PATHS = (MODEL, ENCODER)  # settings that may name folders; with Ray the nodes have the folders, and check them
LAUNCHER, RAY = "eval.launcher", "ray"
WORDS = {  # words that a setting accepts
    "engine.importance": IMPORTANCE, "env.rewording": tuple(REWORDINGS), "engine.transport": TRANSPORTS, "eval.frames":
    tuple(EXTENSIONS), LAUNCHER: ("local", RAY), "memory.context": CONTEXTS, "memory.layout": LAYOUTS, "model.dtype":
    ("auto", *DTYPES), "model.init": INITS, "model.quantization": QUANTIZATIONS, "planner.policy": POLICIES,
    "planner.reduce": REDUCTIONS, "prompt.focus": tuple(FOCI), "prompt.format": FORMATS, "prompt.style": tuple(STYLES),
    "wandb.mode": MODES,
}  # fmt: skip
OF_LINES = ("goal", "focus", "preamble")  # settings of prompts that prompt.format=lota ignores
NULLABLE_WORDS = ("env.rewording", "eval.frames", "eval.launcher", "model.quantization", "prompt.focus")


def check_settings(
    config: DictConfig, least: Mapping[str, int] = LEAST, optional: Collection[str] = OPTIONAL,
    switches: Collection[str] = SWITCHES,
) -> None:  # fmt: skip
    """Raise ConfigError for an invalid setting. The message has its key, its value and the valid values."""
    check_kinds(OmegaConf.to_container(config, resolve=True), only=[ValueKind.GROUP])
    for key, bound in least.items():
        value = OmegaConf.select(config, key)
        if value is None and key in optional:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < bound:
            null = ", or null" if key in optional else ""
            raise ConfigError(f"{key}={value} does not work; give a whole number from {bound} on{null}")
        if value > MOST.get(key, value):
            raise ConfigError(f"{key}={value} is too many; give {MOST[key]} at most")
    for key in (*switches, *NULLABLE_SWITCHES):
        value = OmegaConf.select(config, key)
        if not isinstance(value, bool) and (value is not None or key in switches):
            raise ConfigError(f"{key}={value} does not work; give true or false")
    names = (*WORDS, DEVICE) if OmegaConf.select(config, LAUNCHER) == RAY else (*WORDS, DEVICE, *PATHS)
    for key in names:
        if (node := OmegaConf.select(config, key.rpartition(".")[0])) and key.rpartition(".")[2] in node:
            check_word(key, OmegaConf.select(config, key))
    if OmegaConf.select(config, "prompt.format") == "lota":
        for key in OF_LINES:
            if value := config.prompt.get(key):
                raise ConfigError(f"prompt.{key}={value} has no effect on LoTA-Bench's prompts; leave it out")
    check_values(config)
    if "env" in config:
        spec_of(config.env.id).setting(**without_simulator(config.env))


def check_values(config: DictConfig) -> None:
    """Raise ConfigError for a value of the wrong kind, and for an invalid class of a memory component."""
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)
    check_classes(plain.get("memory"), "memory")  # first, since the kinds of arguments depend on the class
    check_kinds(plain)


def check_word(key: str, value: Any) -> None:
    """Raise ConfigError for a word that a setting does not accept, and for an invalid model, encoder or device name."""
    if key == MODEL and isinstance(value, str):
        check_model(value)
    if key == ENCODER and isinstance(value, str) and value:
        check_encoder(value)
    if key == DEVICE and isinstance(value, str):
        check_device(key, value)
    if key in WORDS:
        check_choice(key, value, WORDS[key], null=key in NULLABLE_WORDS)
