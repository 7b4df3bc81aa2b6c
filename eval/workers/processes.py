"""Worker processes on this machine, each connected to the supervisor by a multiprocessing pipe."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from eval.common.resume import use_threads
from eval.workers.player import Player
from eval.workers.supervisor import EpisodeRecord, WorkerDeath, WorkerSetup
from keep_agent.config.literal import as_config
from keep_agent.errors import KeepError

GRACE_SECONDS = 10.0  # seconds for a process to stop its simulator


@dataclass(frozen=True, eq=False)
class Worker:
    process: BaseProcess
    parent_pipe: Connection


class ProcessPool:
    """Pool of ``count`` worker processes, which play episodes of ``config`` (plain data)."""

    def __init__(self, config: Mapping[str, Any], count: int) -> None:
        self._config, self._count = config, count
        self._context = get_context("spawn")  # a fork would copy the state of torch's thread pools
        self._workers: list[Worker] = []

    def start(self) -> Worker:
        parent_pipe, worker_pipe = self._context.Pipe()
        process = self._context.Process(target=_worker_main, args=(self._config, self._count, worker_pipe), daemon=True)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # Ctrl-C must not reach the new process
        try:
            with worker_pipe:
                process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        worker = Worker(process, parent_pipe)
        self._workers.append(worker)
        return worker

    def assign(self, worker: Worker, index: int) -> None:
        with suppress(OSError):  # the worker is dead: its pipe is closed
            worker.parent_pipe.send(index)

    def receive(self) -> tuple[Worker, WorkerSetup | EpisodeRecord | WorkerDeath]:
        pipes = {worker.parent_pipe: worker for worker in self._workers}
        worker = pipes[wait(pipes)[0]]
        try:
            message = worker.parent_pipe.recv()
        except (EOFError, OSError):
            self._workers.remove(worker)
            worker.parent_pipe.close()
            _terminate(worker.process)
            code = worker.process.exitcode or 0
            return worker, WorkerDeath(signal.Signals(-code).name if code < 0 else f"exit code {code}")
        if isinstance(message, BaseException):
            raise message
        return worker, message

    def close(self, busy: Sequence[Worker]) -> None:
        for worker in self._workers:
            worker.parent_pipe.close()  # ends a worker that waits for an episode
            if worker in busy:
                worker.process.terminate()
        for worker in self._workers:
            _terminate(worker.process)


def _terminate(process: BaseProcess) -> None:
    process.join(GRACE_SECONDS)
    process.kill()
    process.join()


def _worker_main(plain: Mapping[str, Any], count: int, pipe: Connection) -> None:
    """Play the episodes whose indices arrive through the pipe, until it closes. SIGTERM ends worker and simulator."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt, EOFError, ConnectionError):  # SIGTERM, or the supervisor has exited
        try:
            config = as_config(plain)
            use_threads(config, count)
            with closing(Player(config)) as player:
                pipe.send(player.setup)
                while True:
                    pipe.send(player.play(pipe.recv()))
        except EOFError:
            raise
        except (KeepError, OSError) as error:
            pipe.send(error)
        except Exception:
            pipe.send(RuntimeError(f"in a worker:\n{traceback.format_exc()}"))
