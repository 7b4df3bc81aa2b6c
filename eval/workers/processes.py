"""Processes of this machine, each started anew, with a pipe to it."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from eval.common.resume import use_threads
from eval.workers.base import Played, Setup
from eval.workers.player import Player
from eval.workers.supervisor import Died
from keep_agent.config.literal import as_config
from keep_agent.errors import KeepError

GRACE = 10.0  # seconds in which a process may end its simulator


@dataclass(frozen=True, eq=False)
class Worker:
    process: BaseProcess
    pipe: Connection


class Pool:
    """The workers of a config (plain data), of which there will be ``count``."""

    def __init__(self, config: Mapping[str, Any], count: int) -> None:
        self._config, self._count = config, count
        self._context = get_context("spawn")  # a fork would copy torch's threads in whatever state they are
        self._workers: list[Worker] = []

    def start(self) -> Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(self._config, self._count, theirs), daemon=True)
        with theirs, _undisturbed():
            process.start()
        worker = Worker(process, ours)
        self._workers.append(worker)
        return worker

    def give(self, worker: Worker, index: int) -> None:
        with suppress(OSError):  # dead: its pipe ends
            worker.pipe.send(index)

    def hear(self) -> tuple[Worker, Setup | Played | Died]:
        pipes = {worker.pipe: worker for worker in self._workers}
        worker = pipes[wait(pipes)[0]]
        try:
            answer = worker.pipe.recv()
        except (EOFError, OSError):
            return worker, self._bury(worker)
        if isinstance(answer, BaseException):
            raise answer
        return worker, answer

    def close(self, busy: Sequence[Worker]) -> None:
        for worker in self._workers:
            worker.pipe.close()  # ends one that waits for an episode
            if worker in busy:
                worker.process.terminate()
        for worker in self._workers:
            _end(worker.process)

    def _bury(self, worker: Worker) -> Died:
        self._workers.remove(worker)
        worker.pipe.close()
        _end(worker.process)
        code = worker.process.exitcode or 0
        return Died(signal.Signals(-code).name if code < 0 else f"exit code {code}")


def _end(process: BaseProcess) -> None:
    process.join(GRACE)
    process.kill()
    process.join()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C reaches every process of a terminal: one that begins in here does not hear it, this one does so later."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(plain: Mapping[str, Any], count: int, pipe: Connection) -> None:
    """A worker's life: play what comes through the pipe until that ends. SIGTERM ends it, and its simulator, too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt, EOFError, ConnectionError):  # no one is there any more
        try:
            _play(plain, count, pipe)
        except EOFError:
            raise
        except (KeepError, OSError) as error:
            pipe.send(error)
        except Exception:
            pipe.send(RuntimeError(f"in a worker:\n{traceback.format_exc()}"))


def _play(plain: Mapping[str, Any], count: int, pipe: Connection) -> None:
    config = as_config(plain)
    use_threads(config, count)
    with closing(Player(config)) as player:
        pipe.send(player.setup)
        while True:
            pipe.send(player.play(pipe.recv()))
