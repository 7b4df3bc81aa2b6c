"""Factory of the runner that a config asks for."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from eval.workers.base import EpisodeRunner
from eval.workers.player import InProcessRunner
from eval.workers.processes import ProcessPool
from eval.workers.supervisor import Supervisor
from keep_agent.config.settings import RAY
from keep_agent.errors import ConfigError


def make_runner(config: DictConfig, episodes: int) -> EpisodeRunner:
    """Make the runner of ``eval.workers`` and ``eval.launcher`` for ``episodes`` episodes.

    :raises KeepError: the settings exclude each other, or data or model cannot be loaded
    """
    workers, launcher = config.eval.get("workers") or 1, config.eval.get("launcher") or "local"
    if workers > 1 and config.env.get("simulator"):
        raise ConfigError(
            f"eval.workers={workers} with env.simulator={config.env.simulator}: a simulator plays one episode at a "
            "time; use eval.workers=1, and one simulator for each eval.shard"
        )
    count = max(1, min(workers, episodes))
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)
    if launcher == RAY:
        from eval.workers.ray_actors import ActorPool  # imported here because Ray is an extra

        return Supervisor(ActorPool(plain, count), count)
    return InProcessRunner(config) if count == 1 else Supervisor(ProcessPool(plain, count), count)
