"""Gymnasium's vector environments and wrappers with both worlds and texts in any script."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces.utils import flatten, flatten_space, unflatten
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from envs.spaces import Words
from envs.worlds import GENERATED, spec_of

WORDS = "Stell die „Tasse“ 🤖 שלום\u2028 auf\x00 den\n Tisch"
MODES = {
    "sync": {"vectorization_mode": "sync"},
    "async": {"vectorization_mode": "async"},
    "async-pipes": {"vectorization_mode": "async", "vector_kwargs": {"shared_memory": False}},
    "same-step": {"vectorization_mode": "async", "vector_kwargs": {"autoreset_mode": AutoresetMode.SAME_STEP}},
}
worlds = pytest.mark.parametrize("world", [world.id for world in GENERATED.values()])


def episodes(world: str) -> list[Any]:
    """Return two episodes, the second with an instruction beyond ASCII."""
    first, second = spec_of(world).episodes(None, "test", limit=2)
    return [first, replace(second, tasks=(replace(second.tasks[0], instruction=WORDS),))]


@worlds
@pytest.mark.parametrize("mode", MODES)
def test_texts_are_complete_in_every_kind_of_vector(world: str, mode: str) -> None:
    choices = episodes(world)
    envs = gymnasium.make_vec(world, num_envs=2, episodes=choices, **MODES[mode])
    try:
        first, _ = envs.reset(options={"episode": 1})
        second, _, terminated, _, _ = envs.step(("find a sofa", "done"))
        assert first["instruction"] == (WORDS, WORDS)
        assert second in envs.observation_space and list(terminated) == [False, True]
        assert envs.reset(options={"episode": 0})[0]["instruction"] == (choices[0].tasks[0].instruction,) * 2
    finally:
        envs.close()


@worlds
def test_statistics_of_episodes_are_recorded(world: str) -> None:
    envs = RecordEpisodeStatistics(gymnasium.make_vec(world, num_envs=2, vectorization_mode="async", max_steps=2))
    try:
        envs.reset(seed=0)
        _, _, terminated, _, info = envs.step(("done", "done"))
    finally:
        envs.close()
    assert all(terminated) and list(info["episode"]["l"]) == [1, 1]


def test_flattening_is_reversible_and_spaces_of_the_same_texts_are_equal() -> None:
    space = Words(60)
    flat = flatten(space, WORDS)
    assert flat in flatten_space(space) and flat.dtype == np.int32 and unflatten(space, flat) == WORDS
    assert Words(60) == Words(60, ("done",)) and Words(60) != Words(61)
