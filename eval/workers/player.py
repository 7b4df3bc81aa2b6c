"""Player of episodes: a world and a planner in this process."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace

from omegaconf import DictConfig

from eval.workers.supervisor import EpisodeRecord, WorkerSetup
from keep_agent.config.factory import demonstration_length, make_env, make_episodes, make_planner
from keep_agent.rollout.frames import Frames
from keep_agent.rollout.loop import run_episode


class Player:
    """World and planner of one config, which play any of its episodes. Raises KeepError if they cannot be loaded."""

    def __init__(self, config: DictConfig) -> None:
        self._config = config
        self._episodes = make_episodes(config.env, config.eval)
        self._settings = {"skills": config.env.skills, "demonstration_length": demonstration_length(config.env)}
        with ExitStack() as stack:
            self._env = stack.enter_context(closing(make_env(config.env, self._episodes)))
            self._planner = stack.enter_context(closing(make_planner(config)))
            self._resources = stack.pop_all()
        weights, trained = self._planner.weights, getattr(self._planner, "trained", None)
        self.setup = WorkerSetup(weights, len(self._episodes), platform.node(), trained)
        self._timed_on = "" if weights is None else timed_on(config)  # without a model nothing is timed

    def play(self, index: int) -> EpisodeRecord:
        evaluation, episode = self._config.eval, self._episodes[index]
        image_format = evaluation.get("frames") if evaluation.trace else None  # older configs lack eval.frames
        frames = Frames(episode.id, image_format) if image_format else None
        settings = {"index": index, "seed": evaluation.seed + index, "frames": frames, **self._settings}
        result, entries = run_episode(self._env, self._planner, episode, **settings)
        result = replace(result, timed_on=self._timed_on)
        return EpisodeRecord(result, entries if evaluation.trace else (), frames)

    def close(self) -> None:
        self._resources.close()


class InProcessRunner:
    """Runner that plays one episode after another in this process."""

    def __init__(self, config: DictConfig) -> None:
        self._player = Player(config)
        self.setup = self._player.setup

    def play(self, indices: Sequence[int]) -> Iterator[EpisodeRecord]:
        return map(self._player.play, indices)

    def close(self) -> None:
        self._player.close()


def timed_on(config: DictConfig) -> str:
    """Describe the machine, library versions and number of workers, on which measured times depend."""
    from eval.latency.machine import this_machine  # lazy: it loads torch

    machine, workers = this_machine(), config.eval.get("workers") or 1
    return f"{machine.text}, transformers {machine.transformers}, {workers} worker{'s' if workers > 1 else ''}"
