"""Background writer: a thread that writes file after file, each with the newest content that was queued for it."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from keep_agent.errors import ConfigError

logger = logging.getLogger(__name__)


class Writer:
    """Thread that runs queued functions. A new function takes the queue place of a pending one with the same key."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="persist")
        self._state = threading.Condition()
        self._waiting: OrderedDict[Hashable, Callable[[], object]] = OrderedDict()
        self._running: Hashable | None = None
        self._closed = False

    def put(self, key: Hashable, work: Callable[[], object]) -> None:
        """Queue work. Raises ConfigError after `close`."""
        with self._state:
            if self._closed:
                raise ConfigError(f"rows of {key!r} cannot be written: these memories are closed")
            if key not in self._waiting:
                self._pool.submit(self._next)
            self._waiting[key] = work

    def wait(self, select: Callable[[Hashable], bool] = lambda key: True) -> None:
        """Wait until the running and pending work under the keys that ``select`` accepts is done."""
        with self._state:
            for key in filter(select, [*self._waiting, *([] if self._running is None else [self._running])]):
                self._state.wait_for(partial(self._is_done, key))

    def drop(self, select: Callable[[Hashable], bool]) -> None:
        """Drop pending work under the keys that ``select`` accepts, and wait if work under such a key is running."""
        with self._state:
            for key in list(filter(select, self._waiting)):
                del self._waiting[key]
            self._state.notify_all()
            self._state.wait_for(lambda: self._running is None or not select(self._running))

    def close(self) -> None:
        """Finish the remaining work, and stop. May be called twice."""
        with self._state:
            self._closed = True
        self._pool.shutdown()

    def _is_done(self, key: Hashable) -> bool:
        return key not in self._waiting and key != self._running

    def _next(self) -> None:
        with self._state:
            if not self._waiting:  # the work was dropped
                return
            self._running, work = self._waiting.popitem(last=False)
        try:
            work()
        except Exception:
            logger.exception("background work for %r failed", self._running)
        finally:
            del work  # otherwise the rows that it refers to stay in memory while the thread is idle
            with self._state:
                self._running = None
                self._state.notify_all()
