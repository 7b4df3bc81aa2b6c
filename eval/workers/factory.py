"""Who plays a config."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from eval.workers.base import Crew
from eval.workers.in_process import Here
from eval.workers.processes import Pool
from eval.workers.supervisor import Crowd
from keep_agent.config.settings import RAY
from keep_agent.errors import ConfigError


def make_crew(config: DictConfig, episodes: int) -> Crew:
    """The crew of ``eval.workers`` and ``eval.launcher``, for so many episodes. Raises KeepError if it cannot play."""
    wanted, launcher = config.eval.get("workers") or 1, config.eval.get("launcher") or "local"
    if wanted > 1 and config.env.get("simulator"):
        raise ConfigError(
            f"eval.workers={wanted} with env.simulator={config.env.simulator}: it plays one episode at a time; use "
            "eval.workers=1, and a simulator for each eval.shard"
        )
    count = max(1, min(wanted, episodes))
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True)
    if launcher == RAY:
        from eval.workers.ray_actors import RayActors  # here: an extra

        return Crowd(RayActors(plain, count), count)
    return Here(config) if count == 1 else Crowd(Pool(plain, count), count)
