"""Episodes of Watch-And-Help in the small apartment, and an environment with them."""

from __future__ import annotations

from typing import Any

from envs.wah.apartments.episodes import generate_episode
from envs.wah.env import WatchAndHelpEnv
from envs.wah.scene import Episode, Scene, Task
from tests.envs.wah.homes import apartment

SNACK = Task("prepare_snack", (("on_apple_coffeetable", 1),), "an apple on the coffee table", "snack")
CHILL = Task("put_fridge", (("inside_cupcake_fridge", 1),), "put the cupcake in the fridge", "chill")
READ = Task("read_book", (("holds_book", 1), ("sit_sofa", 1)), "read a book on the sofa", "read")
EPISODES = (
    Episode("stream", Scene("small", apartment(), "kitchen"), (SNACK, CHILL)),
    Episode("single", Scene("small", apartment(), "livingroom"), (CHILL,)),
    Episode("reading", Scene("small", apartment(agent_in="kitchen_1")), (READ,)),
    generate_episode(3, stream=2),
)


def make(**settings: Any) -> WatchAndHelpEnv:
    return WatchAndHelpEnv(episodes=EPISODES, **settings)
