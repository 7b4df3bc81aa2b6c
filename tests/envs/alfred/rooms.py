"""Small rooms written by hand, in which every rule of the world can be tested, and functions that execute skills."""

from __future__ import annotations

from envs.alfred.env import AlfredEnv
from envs.alfred.experts.expert import Expert
from envs.alfred.scene import Item, Scene
from envs.alfred.world import World
from envs.setting import SkillSet


def place(kind: str, number: int, x: float, z: float, *states: str, parent: str | None = None) -> Item:
    """Return a thing at floor coordinates (x, z)."""
    return Item(f"{kind.lower()}_{number}", kind, (x, 0.9, z), parent, frozenset(states))


def inside(kind: str, number: int, parent: Item, *states: str) -> Item:
    """Return an object in or on another thing."""
    return Item(f"{kind.lower()}_{number}", kind, parent.position, parent.id, frozenset(states))


def kitchen() -> Scene:
    """Return two counters, a fridge, a microwave, two cabinets, two drawers, two burners and a sink, 2 m apart."""
    counter, second = place("CounterTop", 1, 0, 0), place("CounterTop", 2, 0, 8)
    fridge, cabinet, drawer = place("Fridge", 1, 4, 0), place("Cabinet", 1, 6, 0), place("Drawer", 1, 8, 0)
    burner = place("StoveBurner", 1, 2, 4)
    box = inside("Box", 1, second)
    return Scene(
        id="kitchen",
        room="kitchen",
        items=(
            counter, second, fridge, cabinet, place("Cabinet", 2, 6, 1), drawer, place("Drawer", 2, 8, 0.5),
            place("Microwave", 1, 2, 0), burner, place("StoveBurner", 2, 2, 4.5), place("SinkBasin", 1, -4, 0),
            place("Faucet", 1, -4, 0.25), inside("Apple", 1, counter), inside("Apple", 2, fridge),
            inside("Knife", 1, counter), inside("Mug", 1, cabinet), inside("Pan", 1, burner),
            inside("Plate", 1, counter), inside("Egg", 1, fridge), box, inside("Pencil", 1, box),
            place("Potato", 1, 0, 4),
        ),
        agent=(0.0, 2.0),
    )  # fmt: skip


def bedroom() -> Scene:
    """Return a desk with a lamp, a floor lamp far from it, two shelves, a laptop and a bath with its faucet."""
    desk, shelf, second = place("Desk", 1, 0, 0), place("Shelf", 1, 5, 0), place("Shelf", 2, 5, 1)
    return Scene(
        id="bedroom",
        room="bedroom",
        items=(
            desk, shelf, second, place("BathtubBasin", 1, 9, 9), place("SinkBasin", 1, 9, 3),
            place("DeskLamp", 1, 0.5, 0, parent=desk.id), place("FloorLamp", 1, -6, 0), place("Faucet", 1, 9, 8.5),
            inside("Laptop", 1, desk, "open"), inside("Book", 1, desk), inside("Book", 2, shelf),
            inside("Book", 3, desk), inside("TissueBox", 1, second), inside("Cloth", 1, desk),
        ),
        agent=(1.0, 1.0),
    )  # fmt: skip


def do(world: World, *steps: str) -> None:
    """Execute primitives given as "pick apple_1"; each of them must succeed."""
    for step in steps:
        name, *arguments = step.split()
        outcome = getattr(world, name)(*arguments)
        assert outcome.ok, f"{step}: {outcome.message}"


def execute(skill_set: SkillSet, world: World, *skills: str) -> None:
    """Execute skills; each of them must succeed."""
    for skill in skills:
        outcome = skill_set.execute(world, skill)
        assert outcome.ok, f"{skill}: {outcome.message}"


def play(env: AlfredEnv, expert: Expert, index: int) -> tuple[bool, list[str]]:
    """Play one episode; return whether all its tasks succeeded, and the skills."""
    _, info = env.reset(options={"episode": index})
    over, success, skills = False, True, []
    while not over:
        assert not info["success"] or info["step"], "goals are false when their task begins"
        skills.append(expert.act(info["world"], info["task"], info["knowledge"]))
        assert skills[-1] in info["skills"]
        _, _, terminated, truncated, info = env.step(skills[-1])
        assert info["outcome_ok"], (env.episode.id, skills)
        over = terminated or truncated
        success = success and (info["task_done"] is None or info["task_done"].success)
    return success, skills
