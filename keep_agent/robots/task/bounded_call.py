"""A call that somebody waits for, but not for ever."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from threading import Lock, Thread
from typing import Any, Generic, TypeVar

from envs.clock import Clock

T = TypeVar("T")


class Call(Generic[T]):
    """A function at work on a thread of its own, which does not keep the process alive."""

    def __init__(self, name: str, function: Callable[[], T]) -> None:
        self.name, self.clock = name, Clock(0)
        self._function = function
        self._lock, self._taken = Lock(), False
        self._future: Future[T] = Future()
        Thread(target=self._work, name=f"keep-agent {name}", daemon=True).start()

    def _work(self) -> None:
        if not self._take():
            return
        try:
            result = self._function()
        except BaseException as error:  # whoever waits gets it
            self._future.set_exception(error)
        else:
            self._future.set_result(result)

    def _take(self) -> bool:
        """Whether nobody has begun or withdrawn it yet."""
        with self._lock:
            taken, self._taken = self._taken, True
        return not taken

    def withdraw(self, result: T) -> bool:
        """If it has not begun, it never will, and is done with ``result``: its thread may be late."""
        withdrawn = self._take()
        if withdrawn:
            self._future.set_result(result)
        return withdrawn

    @property
    def done(self) -> bool:
        return self._future.done()

    @property
    def error(self) -> BaseException | None:
        """What it raised. Of a call that is done only."""
        return self._future.exception(0)

    @property
    def result(self) -> T:
        """Of a call that is done; raises what it raised."""
        return self._future.result(0)

    def wait(self, seconds: float, *others: Future[Any]) -> bool:
        """Until it is done, or one of the others, or the time is over; whether this one is done."""
        wait({self._future, *others}, max(seconds, 0.0), FIRST_COMPLETED)
        return self.done
