"""Methods to compare, as the command line names them: ``keep``, ``keep+memory.recompute.max_hops=0``, or with a name
of one's own, ``one_hop:keep+memory.recompute.max_hops=0``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.singleton import Singleton
from omegaconf import DictConfig, ListConfig

from eval.common.accepted_overrides import key_of, within
from keep_agent.config.compose import compose_settings
from keep_agent.config.known_settings import UnknownSetting
from keep_agent.config.settings import check_settings
from keep_agent.errors import ConfigError

PLAIN = "transformers"  # its own forward, beside the methods
METHODS_OWN = ("memory", "planner")  # where prompts are the same for all
REMEMBERS = ("memory", "prompt.budget")
DECIDES = (*REMEMBERS, "planner", "prompt.style")


def names(text: str) -> list[str]:
    """A comma-separated list; ``none``, or nothing but commas, is an empty one."""
    return [] if text == "none" else [part for part in text.split(",") if part]


def listed(value: Any) -> list[Any]:
    """A list as it is; text at its commas; one value alone."""
    if isinstance(value, ListConfig):
        return list(value)
    return list(names(value)) if isinstance(value, str) else [value]


@contextmanager
def aside() -> Iterator[None]:
    """Compose other configs while Hydra runs a job of its own."""
    running = Singleton.get_state()
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        Singleton.set_state(running)


def compose_variants(
    variants: Sequence[str], overrides: Sequence[str], own: Collection[str] = DECIDES
) -> dict[str, DictConfig]:
    """The config of every variant by its name, under the same ``overrides``; after a ``+`` come a variant's own.

    :param own: what methods may differ in; all else is taken from the first of them, so it has to be the same
    :raises ConfigError: a variant is named twice, has no memory, or differs from the others in more than ``own``
    """
    parted = [variant.partition(":") for variant in variants]
    described = {label: what or label for label, _, what in parted}
    if len(described) < len(variants):
        raise ConfigError(f"{','.join(variants)} names a method twice")
    configs = {}
    for label, what in described.items():
        planner, *extra = what.split("+")
        for override in extra:
            if not within(key_of(override), own):
                raise ConfigError(
                    f"method {label}: {override!r} is not a method's own, as {', '.join(own)} are; "
                    "give it to all methods, without the +"
                )
        try:
            configs[label] = compose_settings("alfred", [f"planner={planner}", *overrides, *extra])
        except UnknownSetting as error:
            raise ConfigError(
                f"method {label}: {error}; what not all methods have stands behind its method: NAME+KEY=VALUE"
            ) from error
    for variant, config in configs.items():
        check_settings(config)
        if "memory" not in config:
            raise ConfigError(f"method {variant} has no memory to measure; see `keep-agent methods`")
    return configs


def check_methods(configs: Mapping[str, DictConfig]) -> None:
    """Raises ConfigError for a method that cannot be made: before a model is loaded."""
    from keep_agent.config.planner_factory import (
        make_method,  # here: it loads torch, and what is mistyped is refused before
    )

    for config in configs.values():
        make_method(config.memory)
