"""Long use of one process, and many processes in turn: no leaks, no growth."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from envs.alfred.spec import load_episodes
from tests.envs.alfred.thor.leftovers import no_leaks, open_resources
from tests.envs.alfred.thor.playing import play, thor_env

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
EPISODES = list(load_episodes(None, "valid")[:20])


@pytest.fixture(autouse=True)
def _freeze_earlier_objects() -> Iterator[None]:
    """Freeze earlier tests' objects, which would delay the collection of new cycles."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def resident() -> float:
    """Return the memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def test_a_thousand_resets_of_one_process() -> None:
    with no_leaks(), thor_env(EPISODES) as env:
        for number in range(100):
            env.reset(seed=number)
        before, memory = open_resources(), resident()
        for number in range(1000):
            env.reset(seed=number)
        assert open_resources() == before and resident() - memory < 20 and env.setting.simulator.launches == 1


@pytest.mark.parametrize("server", ["fifo", "wsgi"])
def test_twenty_processes_one_after_another(server: str) -> None:
    with no_leaks():
        for episode in EPISODES:
            with thor_env(EPISODES, thor={"server": server}) as env:
                assert play(env, episode)[0]


def test_ten_thousand_steps() -> None:
    random, steps = Random(0), 0
    with no_leaks(), thor_env(EPISODES, skills="grounded", observability="partial") as env:
        before, memory = {}, 0.0
        while steps < 10_000:
            _, info = env.reset(seed=steps)
            over = False
            while not over:
                skills = sorted(set(info["skills"]) - {"done"})
                _, _, terminated, truncated, info = env.step(random.choice(skills))
                steps, over = steps + 1, terminated or truncated
            if not before and steps > 1000:
                before, memory = open_resources(), resident()
        assert open_resources() == before and resident() - memory < 20
        assert env.setting.simulator.launches == 1 and env.setting.simulator.calls > 10_000
