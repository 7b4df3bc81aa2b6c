"""Stream of one request's tokens, readable from any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import Any

from keep_agent.errors import ConfigError, ModelError
from memory.engine.scheduler.batch import Member
from memory.engine.trace import PrefillTrace

Tokens = Sequence[int] | Callable[[Member], Sequence[int]]


class Reason(Enum):
    """Reason of a request's end."""

    STOP = "stop"  # one of its stop ids was next; it is not in the cache
    LENGTH = "length"  # it has ``max_new_tokens``
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True)
class Request:
    """``token_ids`` go behind ``cache``, and a greedy continuation behind them.

    :param agent: requests of one agent run in order
    :param token_ids: or a function that gives them when the request's turn has come, on the engine's worker. It sees
        what the agent's requests before have left, and may cut the cache
    """

    agent: str
    cache: Member
    token_ids: Tokens
    max_new_tokens: int
    stop_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens={self.max_new_tokens} must be at least 1.")


@dataclass(eq=False)
class Stream:
    """Tokens of one request. Iterate, or `collect` all; several threads may, each sees every token."""

    request: Request
    submitted: int = 0  # turns of the scheduler before the request came
    first: int | None = None  # turns when its first token was out
    last: int | None = None  # turns when it ended
    reason: Reason | None = None
    error: BaseException | None = None
    trace: PrefillTrace | None = None  # of its prefill, when that is done
    _tokens: list[int] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _cancelled: bool = False

    def __iter__(self) -> Iterator[int]:
        """Each token as soon as it is known; raises the request's error. Ends early where it was cancelled."""
        for place in count():
            self._wait(lambda least=place: len(self._tokens) > least or self.done, None)
            if place == len(self._tokens):
                break
            yield self._tokens[place]
        if self.error is not None:
            raise self.error

    def __len__(self) -> int:
        return len(self._tokens)

    def __bool__(self) -> bool:
        return True  # also while it is empty

    @property
    def tokens(self) -> list[int]:
        """Tokens decoded so far."""
        return list(self._tokens)

    @property
    def done(self) -> bool:
        return self.reason is not None

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    def collect(self, timeout: float | None = None) -> list[int]:
        """All tokens, when the request has ended; raises its error.

        :param timeout: seconds
        :raises ModelError: it has not ended in time; it goes on
        """
        if not self._wait(lambda: self.done, timeout):
            raise ModelError(f"agent {self.request.agent!r} has no answer after {timeout} s: wait longer, or cancel it")
        if self.error is not None:
            raise self.error
        return self.tokens

    def cancel(self) -> None:
        """End the request before the scheduler's next step; its cache keeps the rows that are computed.

        Until the stream is ``done`` the cache may still grow: `collect` waits for that.
        """
        self._cancelled = True

    def emit(self, token: int, turn: int) -> None:
        """Add a token (scheduler)."""
        with self._changed:
            self._tokens.append(token)
            self.first = turn if self.first is None else self.first
            self._changed.notify_all()

    def end(self, reason: Reason, turn: int, error: BaseException | None = None) -> None:
        """End the request (scheduler)."""
        with self._changed:
            self.reason, self.last, self.error = reason, turn, error
            self._changed.notify_all()

    def _wait(self, condition: Callable[[], Any], timeout: float | None) -> bool:
        with self._changed:
            return bool(self._changed.wait_for(condition, timeout))
