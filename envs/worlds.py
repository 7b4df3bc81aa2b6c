"""Registry of worlds: one line for each, with its gymnasium id. A world's spec lies in ``envs/NAME/spec.py``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from keep_agent.errors import check_choice

if TYPE_CHECKING:
    import gymnasium

    from envs.world_spec import WorldSpec


@dataclass(frozen=True, slots=True)
class World:
    """A registered world. Its modules are imported when its spec or an environment is needed."""

    id: str  # for `gymnasium.make`, which imports what comes before the colon
    env: str  # module and class of the environment
    generated: bool = True  # whether it has households of its own, to play and to learn in

    @property
    def spec(self) -> WorldSpec:
        package = self.env.partition(":")[0].rpartition(".")[0]
        return import_module(f"{package}.spec").SPEC


WORLDS: Mapping[str, World] = MappingProxyType(
    {
        "alfred": World("keep_agent:Alfred-v0", "envs.alfred.env:AlfredEnv"),
        "wah": World("keep_agent:WatchAndHelp-v0", "envs.wah.env:WatchAndHelpEnv"),
        "alfworld": World("keep_agent:ALFWorld-v0", "envs.alfworld.env:AlfworldEnv", generated=False),
    }
)
GENERATED: Mapping[str, World] = MappingProxyType({name: world for name, world in WORLDS.items() if world.generated})


def register_worlds() -> None:
    """Register all ids with gymnasium, unless that is done."""
    from gymnasium.envs.registration import register, registry  # here: specs alone need no gymnasium

    for world in WORLDS.values():
        name = world.id.partition(":")[2]
        if name not in registry:
            register(name, world.env)


def make_world(env_id: str, **options: Any) -> gymnasium.Env:
    """The environment of an id, without gymnasium's checker. Raises ConfigError for an id that is no world."""
    import gymnasium

    check_choice("env.id", env_id, _BY_ID)
    register_worlds()
    return gymnasium.make(env_id, disable_env_checker=True, **options)


def spec_of(env_id: str) -> WorldSpec:
    """The spec behind a gymnasium id. Raises ConfigError for an id that is no world."""
    check_choice("env.id", env_id, _BY_ID)
    return _BY_ID[env_id].spec


def choices_of(env: Mapping[str, Any]) -> dict[str, Any]:
    """The choices in the config of a world's ``env``; those that an older one lacks are left to the world."""
    return {key: env[key] for key in spec_of(env["id"]).choices if key in env}


def without_simulator(env: Mapping[str, Any]) -> dict[str, Any]:
    """`choices_of` the config without those of simulators and their files, which only a played episode needs."""
    simulator = spec_of(env["id"]).simulator_choices
    return {key: value for key, value in choices_of(env).items() if key not in simulator}


_BY_ID = {world.id: world for world in WORLDS.values()}
