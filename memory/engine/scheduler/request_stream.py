"""Stream of one request's tokens, readable from any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count

from keep_agent.errors import ConfigError, ModelError
from memory.engine.scheduler.batch import Member
from memory.engine.trace import PrefillTrace

Tokens = Sequence[int] | Callable[[Member], Sequence[int]]


class FinishReason(Enum):
    """Reason of a request's end."""

    STOP = "stop"  # the next token was one of its stop ids; it is not in the cache
    LENGTH = "length"  # ``max_new_tokens`` are decoded
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True)
class Request:
    """Request to append ``token_ids`` to ``cache`` and to continue with greedy decoding.

    :param agent: requests of one agent run in order
    :param token_ids: token ids, or a function that returns them. When the request begins, the engine's worker calls the
        function with the cache. The function may cut rows of the agent's earlier requests from it
    :param stop_ids: tokens that end the decoding, and are not part of the stream
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
    """Tokens of one request, to iterate or `collect`; several threads may do so, and each gets all tokens."""

    request: Request
    submitted_turn: int = 0  # number of the scheduler's turns before the request was submitted
    first_turn: int | None = None  # turn of its first token
    last_turn: int | None = None  # turn of its end
    reason: FinishReason | None = None
    error: BaseException | None = None
    trace: PrefillTrace | None = None  # trace of its prefill, once that is done
    cancelled: bool = False  # whether `cancel` was called
    _tokens: list[int] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def __iter__(self) -> Iterator[int]:
        """Yield each token as soon as it is decoded, up to the end of the request; raises its error."""
        for place in count():
            with self._changed:
                self._changed.wait_for(lambda least=place: len(self._tokens) > least or self.done)
            if place == len(self._tokens):
                break
            yield self._tokens[place]
        if self.error is not None:
            raise self.error

    def __len__(self) -> int:
        return len(self._tokens)

    def __bool__(self) -> bool:
        return True  # even without tokens

    @property
    def tokens(self) -> list[int]:
        """Tokens decoded so far."""
        return list(self._tokens)

    @property
    def done(self) -> bool:
        return self.reason is not None

    def collect(self, timeout: float | None = None) -> list[int]:
        """Wait for the end of the request and return all tokens; raises its error.

        :param timeout: seconds
        :raises ModelError: the request has not ended in time; it continues
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.done, timeout):
                name = self.request.agent
                raise ModelError(f"agent {name!r} has no answer after {timeout} s: wait longer, or cancel it")
        return list(self)

    def cancel(self) -> None:
        """End the request before the scheduler's next turn; its cache keeps the computed rows.

        The cache may grow until the stream is ``done``, for which `collect` waits.
        """
        self.cancelled = True

    def emit(self, token: int, turn: int) -> None:
        """Add a token; called by the scheduler."""
        with self._changed:
            self._tokens.append(token)
            self.first_turn = turn if self.first_turn is None else self.first_turn
            self._changed.notify_all()

    def end(self, reason: FinishReason, turn: int, error: BaseException | None = None) -> None:
        """End the request; called by the scheduler."""
        with self._changed:
            self.reason, self.last_turn, self.error = reason, turn, error
            self._changed.notify_all()
