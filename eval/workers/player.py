"""A world and a planner in this process."""

from __future__ import annotations

import platform
from contextlib import ExitStack, closing
from dataclasses import replace

from omegaconf import DictConfig

from eval.workers.base import Played, Setup
from keep_agent.config.factory import demonstration, make_env, make_episodes, make_planner
from keep_agent.rollout.frames import Frames
from keep_agent.rollout.loop import run_episode


class Player:
    """Plays any episode of a config. Raises KeepError for what cannot be loaded or put together."""

    def __init__(self, config: DictConfig) -> None:
        self._config = config
        self._episodes = make_episodes(config.env, config.eval)
        self._settings = {"skills": config.env.skills, "demonstrate": demonstration(config.env)}
        with ExitStack() as stack:
            self._env = stack.enter_context(closing(make_env(config.env, self._episodes)))
            self._planner = stack.enter_context(closing(make_planner(config)))
            self._open = stack.pop_all()
        weights, trained = self._planner.weights, getattr(self._planner, "trained", None)
        self.setup = Setup(weights, len(self._episodes), platform.node(), trained)
        self._timed_on = "" if weights is None else timed_on(config)  # without a model nothing is timed

    def play(self, index: int) -> Played:
        """The episode of that number."""
        evaluation, episode = self._config.eval, self._episodes[index]
        kept = evaluation.get("frames") if evaluation.trace else None  # runs older than the setting kept none
        frames = Frames(episode.id, kept) if kept else None
        seed = evaluation.seed + index
        given = {"index": index, "seed": seed, "frames": frames, **self._settings}
        result, entries = run_episode(self._env, self._planner, episode, **given)
        result = replace(result, timed_on=self._timed_on)
        return Played(result, entries if evaluation.trace else (), frames)

    def close(self) -> None:
        self._open.close()


def timed_on(config: DictConfig) -> str:
    """What times depend on besides the settings: the machine, its libraries, and who else works on it."""
    from eval.latency.machine import this_machine  # here: it loads torch

    machine, workers = this_machine(), config.eval.get("workers") or 1
    return f"{machine.text}, transformers {machine.transformers}, {workers} worker{'s' if workers > 1 else ''}"
