"""One thread owns the model. Plans go before background encoding; equal priorities in order of arrival."""

from __future__ import annotations

import atexit
import itertools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeVar
from weakref import WeakSet

import torch

from keep_agent.errors import ModelError

T = TypeVar("T")
TIDIED = 256  # pieces of work: some fifty steps of an agent


def choose_device(device: torch.device | None) -> None:
    """Make a GPU this thread's own: else streams that are named without a device are those of the first."""
    if device is not None and device.type == "cuda":
        torch.cuda.set_device(device)


class Priority(IntEnum):
    """Lower runs first."""

    EXIT = -1
    PLAN = 0
    BACKGROUND = 1
    CLOSE = 2


@dataclass(order=True)
class _Job:
    priority: Priority
    number: int
    work: Callable[[], Any] | None = field(compare=False)
    result: Future = field(compare=False)
    threads: int = field(compare=False, default_factory=torch.get_num_threads)  # of the caller

    def run(self) -> bool:
        """Do the work and let go of it before its end is told; False if it was cancelled."""
        work, self.work = self.work, None
        if work is None or not self.result.set_running_or_notify_cancel():
            return False
        if torch.get_num_threads() != self.threads:  # torch keeps the number per thread: follow the caller's
            torch.set_num_threads(self.threads)
        try:
            with torch.inference_mode():
                result = work()
        except BaseException as error:
            del work
            self.result.set_exception(error)
        else:
            del work
            self.result.set_result(result)
        return True


class Worker:
    """Runs submitted work one piece at a time in its own thread, under ``torch.inference_mode``.

    Every `TIDIED` pieces it tidies up, when the result is out and before it looks for more.
    """

    def __init__(
        self, name: str = "engine", tidy: Callable[[], None] | None = None, device: torch.device | None = None
    ) -> None:
        """:param device: the model's; its streams are the ones the worker means"""
        self._tidy, self._device = tidy, device
        self._jobs: queue.PriorityQueue[_Job] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._closed, self._lock = False, threading.Lock()  # so that no job comes behind the last one
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()
        _ALIVE.add(self)

    def submit(self, work: Callable[[], T], priority: Priority = Priority.PLAN) -> Future[T]:
        """Queue ``work``.

        :raises ModelError: after ``close``.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise ModelError("this engine is closed; build a new one.")
            self._jobs.put(_Job(priority, next(self._numbers), work, future))
        return future

    def call(self, work: Callable[[], T], priority: Priority = Priority.PLAN) -> T:
        """Run ``work`` and return its result; work that already runs here calls straight through.

        When this returns or raises, the thread holds nothing of the work, its result or its error any more: what the
        caller lets go of is gone at once.
        """
        if threading.current_thread() is self._thread:
            return work()
        ends: list[tuple[T, None] | tuple[None, BaseException]] = []  # a future would hold the end a moment longer

        def run() -> None:
            try:
                ends.append((work(), None))
            except BaseException as error:
                ends.append((None, error))

        self.submit(run, priority).result()
        result, error = ends.pop()
        if error is None:
            return result
        try:
            raise error
        finally:
            del error  # its traceback has this frame

    def close(self) -> None:
        """Finish what is queued, then stop. May be called twice."""
        self._end(Priority.CLOSE)

    def _end(self, priority: Priority) -> None:
        with self._lock:
            if not self._closed or priority == Priority.EXIT:
                self._closed = True
                self._jobs.put(_Job(priority, next(self._numbers), None, Future()))
        self._thread.join()  # for whoever calls: what the work needs is put away behind this

    def _serve(self) -> None:
        choose_device(self._device)
        while (job := self._jobs.get()).work is not None:
            ran, due = job.run(), job.number % TIDIED == TIDIED - 1
            del job  # while this thread tidies or waits it must not keep the work, and with it a model, alive
            if ran and due and self._tidy is not None:
                self._tidy()


_ALIVE: WeakSet[Worker] = WeakSet()


@atexit.register
def _end_all() -> None:
    """Wait for the work under way, not for what is queued, when the process ends and nobody has closed an engine.

    A thread that comes back from torch when the interpreter is gone ends the process by an abort.
    """
    for worker in tuple(_ALIVE):
        worker._end(Priority.EXIT)
