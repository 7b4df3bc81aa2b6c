"""Actors of a Ray cluster, on whichever of its nodes there is room."""

from __future__ import annotations

import logging
import math
import platform
import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from eval.common.resume import use_threads
from eval.workers.base import CrewError, Played, Setup
from eval.workers.player import Player
from eval.workers.supervisor import Died
from keep_agent.config.literal import as_config
from keep_agent.errors import ConfigError, KeepError

try:
    import ray
    from ray.actor import ActorHandle
    from ray.exceptions import ObjectLostError, OutOfMemoryError, RayActorError, RayTaskError
except ImportError as error:
    raise ConfigError("eval.launcher=ray needs Ray: pip install 'keep-agent[ray]'; or eval.launcher=local") from error

GRACE = 10.0  # seconds in which an actor may end its simulator
ANSWER = 10.0  # seconds in which a cluster can be reached
PATIENCE = 5.0  # seconds of silence after which to see whether there is still room for anyone
LOST = (RayActorError, ObjectLostError, OutOfMemoryError)


class Actor:
    """Lives on some node; has a player from `begin` on."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = as_config(config)
        self._player: Player | None = None

    def begin(self) -> Setup:
        """Load data and model. Raises KeepError that names the node."""
        use_threads(self._config)  # by itself, Ray gives torch as many as the actor has CPUs
        node = f"node {platform.node()} ({ray.get_runtime_context().get_node_id()[:8]})"
        try:
            self._player = Player(self._config)
        except KeepError as error:
            raise type(error)(f"{node}: {error}") from error
        return replace(self._player.setup, where=node)

    def play(self, index: int) -> Played:
        return self._player.play(index)

    def close(self) -> None:
        self._player.close()


class RayActors:
    """The workers of a config (plain data) on a cluster with room for ``count`` of them, which is checked."""

    def __init__(self, config: Mapping[str, Any], count: int) -> None:
        settings = config["eval"]["ray"]
        self._needs = {"CPU": _amount(settings, "num_cpus"), "GPU": _amount(settings, "num_gpus")}
        self._config = config
        self._workers: list[ActorHandle] = []
        self._asked: dict[ray.ObjectRef, ActorHandle] = {}
        _join(settings["address"])
        room = _room(self._needs)
        if room < count:
            ray.shutdown()
            raise ConfigError(
                f"eval.workers={count} have no room: the Ray cluster has it for {room:g} with eval.ray.num_cpus="
                f"{settings['num_cpus']} and eval.ray.num_gpus={settings['num_gpus']}; lower these, or add nodes"
            )

    def start(self) -> ActorHandle:
        cpus, gpus = self._needs["CPU"], self._needs["GPU"]
        kind = ray.remote(Actor).options(num_cpus=cpus, num_gpus=gpus, max_restarts=0, max_task_retries=0)
        worker = kind.remote(self._config)
        self._workers.append(worker)
        self._asked[worker.begin.remote()] = worker
        return worker

    def give(self, worker: ActorHandle, index: int) -> None:
        self._asked[worker.play.remote(index)] = worker

    def hear(self) -> tuple[ActorHandle, Setup | Played | Died]:
        while not (done := ray.wait(list(self._asked), timeout=PATIENCE)[0]):
            if not _room(self._needs):
                raise CrewError("no node of the Ray cluster is left that has room for a worker; start nodes")
        worker = self._asked.pop(done[0])
        try:
            return worker, ray.get(done[0])
        except LOST as error:
            self._workers.remove(worker)
            ray.kill(worker)  # it may only have been out of reach
            return worker, Died(" ".join(str(error).split()))
        except RayTaskError as error:
            raise (error.cause if isinstance(error.cause, KeepError) else error) from None

    def close(self, busy: Sequence[ActorHandle]) -> None:
        ending = [worker.close.remote() for worker in self._workers if worker not in busy]
        if ending:
            ray.wait(ending, num_returns=len(ending), timeout=GRACE)
        for worker in self._workers:
            ray.kill(worker)  # with what it has started
        ray.shutdown()


def _amount(settings: Mapping[str, Any], key: str) -> float:
    value = settings[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ConfigError(f"eval.ray.{key}={value} does not work; give a number from 0 on")
    return value


def _join(address: str | None) -> None:
    """Connect to a cluster, or start one. Raises ConfigError if it cannot be."""
    started = {} if address else {"include_dashboard": False}
    try:
        if address not in (None, "auto"):
            _knock(address)
        with _own_signals():
            ray.init(address or "local", logging_level=logging.WARNING, log_to_driver=False, **started)
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"eval.ray.address={address} cannot be joined ({error}); give HOST:PORT of a running head, auto or null"
        ) from error


def _knock(address: str) -> None:
    """Raises OSError or ValueError at once where Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), timeout=ANSWER).close()


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray would exit on SIGTERM; here that is an interruption like any other (see `keep_agent.guard`)."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


def _room(needs: Mapping[str, float]) -> float:
    """How many workers the nodes that are alive have room for, if they have nothing else to do."""

    def fit(resources: Mapping[str, float]) -> float:
        return min(
            (math.floor(resources.get(name, 0) / need + 1e-6) for name, need in needs.items() if need), default=math.inf
        )

    return sum(fit(node["Resources"]) for node in ray.nodes() if node["Alive"])
