"""Loader of official data, on ALFRED itself: counts, accuracy of inferred receptacles, and the expert's success."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from envs.alfred.data.official import OfficialEpisodes, load_official
from envs.alfred.data.receptacles import leave_one_out
from envs.alfred.data.survey_cache import load_survey
from envs.alfred.data.trajectories import Corpus
from envs.alfred.env import AlfredEnv
from envs.alfred.experts.expert import Expert
from envs.alfred.goals import MATCHINGS, succeeded
from envs.alfred.world import World


@pytest.fixture(scope="module")
def data(alfred_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The folder json_2.1.0, with a separate cache folder."""
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    yield str(alfred_data / "json_2.1.0")
    patch.undo()


@pytest.fixture(scope="module")
def valid_seen(data: str) -> OfficialEpisodes:
    return load_official(data, "valid_seen")


def test_counts(data: str, valid_seen: OfficialEpisodes) -> None:
    assert len(valid_seen) == 820
    assert len({episode.id for episode in valid_seen}) == 820
    assert len({episode.tasks[0].id for episode in valid_seen}) == 251
    train = load_official(data, "train")
    assert len(train) == 21_023  # the splits file leaves two annotations out


def test_initial_goals_are_false(valid_seen: OfficialEpisodes) -> None:
    for episode in valid_seen:
        world = World(episode.scene)
        assert not any(succeeded(world, episode.tasks[0], matching) for matching in MATCHINGS), episode.id


def test_receptacles_are_inferred(data: str) -> None:
    corpus = Corpus(data)
    trajectories = corpus.trajectories("train")
    assert len(trajectories) == 6_574
    trials = frozenset(trajectory.trial for trajectory in trajectories)
    pairs = list(leave_one_out(load_survey(corpus), trials))
    assert len(pairs) > 8_000
    assert sum(label.fixture == guess for label, guess in pairs) / len(pairs) >= 0.95


@pytest.mark.parametrize(("skills", "observability"), [("lota", "full"), ("grounded", "partial")])
def test_the_expert_solves_them(valid_seen: OfficialEpisodes, skills: str, observability: str) -> None:
    env = AlfredEnv(episodes=valid_seen, skills=skills, observability=observability)
    expert, solved = Expert(skills, observability), 0
    for index in range(len(valid_seen)):
        _, info = env.reset(options={"episode": index})
        done = False
        while not done:
            _, _, terminated, truncated, info = env.step(expert.act(info["world"], info["task"], info.get("knowledge")))
            done = terminated or truncated
        solved += info["task_done"].success
    assert solved / len(valid_seen) >= 0.98
