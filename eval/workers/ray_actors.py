"""Worker actors on the nodes of a Ray cluster."""

from __future__ import annotations

import logging
import math
import platform
import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from eval.common.resume import use_threads
from eval.workers.player import Player
from eval.workers.supervisor import EpisodeRecord, WorkerDeath, WorkerError, WorkerSetup
from keep_agent.config.literal import as_config
from keep_agent.errors import ConfigError, KeepError

try:
    import ray
    from ray.actor import ActorHandle
    from ray.exceptions import ObjectLostError, OutOfMemoryError, RayActorError, RayTaskError
except ImportError as error:
    raise ConfigError(
        "eval.launcher=ray needs Ray: pip install 'keep-agent[ray]'; or use eval.launcher=local"
    ) from error

GRACE_SECONDS = 10.0  # seconds for an actor to stop its simulator
CONNECT_TIMEOUT = 10.0  # seconds to reach a cluster
POLL_SECONDS = 5.0  # seconds without a message, after which the cluster's capacity is checked
ACTOR_FAILURES = (RayActorError, ObjectLostError, OutOfMemoryError)


class Actor:
    """Worker on one node of the cluster; `load` makes its player (world and planner)."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = as_config(config)
        self._player: Player | None = None

    def load(self) -> WorkerSetup:
        """Load data and model. Raises KeepError that names the node."""
        use_threads(self._config)  # if eval.threads is null, Ray's default stays: a torch thread per CPU of the actor
        node = f"node {platform.node()} ({ray.get_runtime_context().get_node_id()[:8]})"
        try:
            self._player = Player(self._config)
        except KeepError as error:
            raise type(error)(f"{node}: {error}") from error
        return replace(self._player.setup, node=node)

    def play(self, index: int) -> EpisodeRecord:
        return self._player.play(index)

    def close(self) -> None:
        self._player.close()


class ActorPool:
    """Pool of ``count`` actors, which play ``config`` (plain data). Raises ConfigError if the cluster lacks room."""

    def __init__(self, config: Mapping[str, Any], count: int) -> None:
        settings = config["eval"]["ray"]
        self._needs = {"CPU": _resource_amount(settings, "num_cpus"), "GPU": _resource_amount(settings, "num_gpus")}
        self._config = config
        self._workers: list[ActorHandle] = []
        self._pending: dict[ray.ObjectRef, ActorHandle] = {}
        _connect(settings["address"])
        room = _capacity(self._needs)
        if room < count:
            ray.shutdown()
            raise ConfigError(
                f"eval.workers={count}: the Ray cluster has room for {room:g} workers with eval.ray.num_cpus="
                f"{settings['num_cpus']} and eval.ray.num_gpus={settings['num_gpus']}; lower these, or add nodes"
            )

    def start(self) -> ActorHandle:
        cpus, gpus = self._needs["CPU"], self._needs["GPU"]
        kind = ray.remote(Actor).options(num_cpus=cpus, num_gpus=gpus, max_restarts=0, max_task_retries=0)
        worker = kind.remote(self._config)
        self._workers.append(worker)
        self._pending[worker.load.remote()] = worker
        return worker

    def assign(self, worker: ActorHandle, index: int) -> None:
        self._pending[worker.play.remote(index)] = worker

    def receive(self) -> tuple[ActorHandle, WorkerSetup | EpisodeRecord | WorkerDeath]:
        while not (done := ray.wait(list(self._pending), timeout=POLL_SECONDS)[0]):
            if not _capacity(self._needs):
                raise WorkerError("no node of the Ray cluster is left that has room for a worker; start nodes")
        worker = self._pending.pop(done[0])
        try:
            return worker, ray.get(done[0])
        except ACTOR_FAILURES as error:
            self._workers.remove(worker)
            ray.kill(worker)  # an actor on an unreachable node may still run
            return worker, WorkerDeath(" ".join(str(error).split()))
        except RayTaskError as error:
            raise (error.cause if isinstance(error.cause, KeepError) else error) from None

    def close(self, busy: Sequence[ActorHandle]) -> None:
        closing = [worker.close.remote() for worker in self._workers if worker not in busy]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=GRACE_SECONDS)
        for worker in self._workers:
            ray.kill(worker)  # including its child processes
        ray.shutdown()


def _resource_amount(settings: Mapping[str, Any], key: str) -> float:
    value = settings[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ConfigError(f"eval.ray.{key}={value} does not work; give a number of 0 or more")
    return value


def _connect(address: str | None) -> None:
    """Connect to a cluster, or start one. Raises ConfigError if that fails."""
    options = {} if address else {"include_dashboard": False}
    try:
        if address not in (None, "auto"):  # fails at once if nothing listens; Ray would retry for minutes
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT).close()
        before = signal.getsignal(signal.SIGTERM)
        ray.init(address or "local", logging_level=logging.WARNING, log_to_driver=False, **options)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray's handler would exit; that of `keep_agent.guard` interrupts
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"eval.ray.address={address} cannot be joined ({error}); give HOST:PORT of a running head, auto or null"
        ) from error


def _capacity(needs: Mapping[str, float]) -> float:
    """Return the number of workers that fit on the alive nodes if nothing else runs there."""
    living = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    needed = {name: need for name, need in needs.items() if need}
    fits = ([math.floor(has.get(name, 0) / need + 1e-6) for name, need in needed.items()] for has in living)
    return sum(min(counts, default=math.inf) for counts in fits)
