"""Bounded call: a function on its own thread, with a time limit for the caller."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from threading import Lock, Thread
from typing import Any, Generic, TypeVar

from envs.clock import Clock

T = TypeVar("T")


class BoundedCall(Generic[T]):
    """A function that runs on a daemon thread."""

    def __init__(self, name: str, function: Callable[[], T]) -> None:
        self.name, self.clock = name, Clock(0)
        self._function = function
        self._future: Future[T] = Future()
        self._claim = Lock()  # acquired only once: by the thread before it calls the function, or by `withdraw`
        Thread(target=self._work, name=f"keep-agent {name}", daemon=True).start()

    def _work(self) -> None:
        if self._claim.acquire(blocking=False):
            try:
                self._future.set_result(self._function())
            except BaseException as error:  # raised by `result`
                self._future.set_exception(error)

    def withdraw(self, result: T) -> bool:
        """Prevent a call that has not begun, and set its ``result``; return whether the call was prevented."""
        withdrawn = self._claim.acquire(blocking=False)
        if withdrawn:
            self._future.set_result(result)
        return withdrawn

    @property
    def done(self) -> bool:
        return self._future.done()

    @property
    def error(self) -> BaseException | None:
        """The exception of a completed call."""
        return self._future.exception(0)

    @property
    def result(self) -> T:
        """The result of a completed call; raises its exception."""
        return self._future.result(0)

    def wait(self, seconds: float, *futures: Future[Any]) -> bool:
        """Wait up to ``seconds`` for this call or one of ``futures``; return whether this call is done."""
        wait({self._future, *futures}, max(seconds, 0.0), FIRST_COMPLETED)
        return self.done
