"""Episodes played in the stand-in for AI2-THOR through the real client, with the symbolic world beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from envs.alfred.env import AlfredEnv
from envs.alfred.goals import goal_conditions
from envs.alfred.scene import Episode
from envs.alfred.world import World
from envs.outcome import Outcome
from tests.waiting import PATIENCE

STAND_IN = {"executable": "stand-in", "start_timeout": PATIENCE, "timeout": PATIENCE}
PRIMITIVES = ("goto", "open", "close", "pick", "put", "drop", "slice", "turn_on", "turn_off")


@contextmanager
def thor_env(episodes: Sequence[Episode] | None = None, thor: Any = (), **settings: Any) -> Iterator[AlfredEnv]:
    """Open an environment over the stand-in, and close it at the end."""
    with closing(AlfredEnv(episodes=episodes, backend="thor", thor={**STAND_IN, **dict(thor)}, **settings)) as env:
        yield env


class Shadow:
    """Symbolic world that begins in the start state of an episode and repeats every primitive of the simulator."""

    def __init__(self, world: World) -> None:
        self.world = world.copy()
        self.calls: list[tuple[str, tuple[str, ...], Outcome]] = []

    def repeat(self, name: str, arguments: tuple[str, ...], outcome: Outcome) -> None:
        symbolic = getattr(self.world, name)(*arguments)
        self.calls.append((name, arguments, outcome))
        assert symbolic == outcome, f"{name}{arguments}: symbolic {symbolic}, simulator {outcome}"


@contextmanager
def shadowed(world: World) -> Iterator[Shadow]:
    """Repeat every primitive of a world in a symbolic one, and assert the same outcome."""
    shadow, kind = Shadow(world), type(world)
    original = {name: getattr(kind, name) for name in PRIMITIVES}

    def follow(name: str) -> Any:
        def primitive(self: World, *arguments: str) -> Outcome:
            outcome = original[name](self, *arguments)
            if self is world:
                shadow.repeat(name, arguments, outcome)
            return outcome

        return primitive

    try:
        for name in PRIMITIVES:
            setattr(kind, name, follow(name))
        yield shadow
    finally:
        for name, method in original.items():
            setattr(kind, name, method)


def shape(world: World) -> dict[str, Any]:
    """Return the state on which goals, facts and skills depend, without positions, because physics changes them."""
    things = {
        thing.id: (thing.type, thing.parent, sorted(thing.contents), thing.is_open, thing.is_on)
        for thing in world.things.values()
    }
    marks = {"hot": world.heated, "cold": world.cooled, "clean": world.cleaned}
    return {"things": things, "holding": world.holding, "at": world.at, **marks}


def play(env: AlfredEnv, episode: Episode) -> tuple[bool, list[str]]:
    """Let the expert play the first task while a symbolic world repeats it; return (success, skills)."""
    _, info = env.reset(options={"episode": episode})
    expert, skills = env.setting.expert(), []
    with shadowed(env.world) as shadow:
        while info["task_done"] is None:
            skills.append(expert.act(info["world"], info["task"], info["knowledge"]))
            if skills[-1] == "done":  # compare before the step, which would begin the next task of a stream
                assert shape(shadow.world) == shape(env.world)
                assert goal_conditions(shadow.world, info["task"]) == info["goal"]
            _, _, _, _, info = env.step(skills[-1])
    return info["task_done"].success, skills
