"""Transport of requests to the simulator: HTTP, one request at a time, with retries of idempotent actions."""

from __future__ import annotations

import json
import logging
import time
from http.client import HTTPException, IncompleteRead
from threading import Lock
from typing import Any, Protocol

from envs.clock import Clock
from envs.wah.virtualhome.errors import (
    SimulatorAnswer,
    SimulatorBusy,
    SimulatorError,
    SimulatorGone,
    SimulatorTimeout,
    excerpt,
)
from envs.wah.virtualhome.wire import DEFAULT_PORT, HttpReply, connect, parse_address, post
from keep_agent.errors import ConfigError

log = logging.getLogger(__name__)

Request = dict[str, Any]  # action, intParams, stringParams
Fields = dict[str, Any]  # success, message, value, message_list

IDEMPOTENT = frozenset({"idle", "environment_graph", "camera_count", "reset"})
TRIES = 4  # maximum for idempotent requests; a busy simulator is tried until the deadline
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0  # seconds; the pause doubles after each try
LIMIT = 64 << 20  # bytes of a response; a graph has one or two million bytes
TIMEOUT, DEADLINE = 30.0, 34.0  # seconds per try, and per call with all tries
MAX_SECONDS = 86_400.0  # upper limit of timeout and deadline


class Transport(Protocol):
    """Channel for requests and answers; it adds and removes the ids of the wire protocol."""

    name: str  # source of the answers, for messages

    def exchange(self, request: Request) -> Fields:
        """Return the fields of the answer, unchecked. Raises `SimulatorError`."""
        ...

    def close(self) -> None: ...


class HttpTransport:
    """HTTP transport. A call ends after at most ``deadline`` seconds, each of its tries after at most ``timeout``."""

    def __init__(
        self,
        url: str = f"http://127.0.0.1:{DEFAULT_PORT}",
        timeout: float = TIMEOUT,
        deadline: float = DEADLINE,
        limit: int = LIMIT,
    ) -> None:
        """``limit``: maximum bytes of a response. Raises ConfigError for an invalid address or time limit."""
        self.name = url
        self.address = parse_address(url)
        self.timeout = _seconds("timeout", timeout)
        self.deadline = _seconds("deadline", deadline)
        self.limit = limit
        self.retries = 0  # retries so far
        self._lock = Lock()

    def exchange(self, request: Request) -> Fields:
        """Send a request and return the answer.

        :raises SimulatorError: `SimulatorBusy`, `SimulatorTimeout`, `SimulatorGone` or `SimulatorAnswer`
        """
        clock, action = Clock(self.deadline), request["action"]
        if not self._lock.acquire(timeout=self.deadline):
            raise self._with_context(SimulatorBusy("another thread's call is running", is_sent=False), action, 0, clock)
        try:
            return self._retry(request, action, clock)
        finally:
            self._lock.release()

    def close(self) -> None:
        """Return at once: every request closes its own connection."""

    def _retry(self, request: Request, action: str, clock: Clock) -> Fields:
        tries = 1
        while True:
            try:
                return self._attempt(request, Clock(min(self.timeout, clock.remaining)))
            except SimulatorError as error:
                pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (tries - 1))
                self._with_context(error, action, tries, clock)
                if not _may_repeat(error) or pause >= clock.remaining:
                    raise
                log.info("%s: %s, retrying in %.1f s", action, error.problem, pause)
            time.sleep(pause)
            tries += 1
            self.retries += 1

    def _attempt(self, request: Request, clock: Clock) -> Fields:
        number = str(time.time_ns())
        reply = self._post(json.dumps({"id": number, **request}).encode(), clock)
        _check_status(reply)
        fields = _decode(reply.body)
        if fields.pop("id", None) != number:
            raise SimulatorAnswer("the answer belongs to another request", status=reply.status)
        return fields

    def _post(self, body: bytes, clock: Clock) -> HttpReply:
        try:
            connection = connect(self.address, clock)
        except TimeoutError as error:
            raise SimulatorTimeout("no connection in time", is_sent=False) from error
        except OSError as error:
            raise SimulatorGone(f"no connection ({error})", is_sent=False) from error
        try:
            return post(connection, self.address, body, clock, self.limit)
        except TimeoutError as error:
            raise SimulatorTimeout("no complete answer in time") from error
        except (OSError, IncompleteRead) as error:
            raise SimulatorGone(f"the connection broke ({error})") from error
        except (HTTPException, ValueError) as error:  # such as a chunk of a negative size
            raise SimulatorAnswer(f"invalid HTTP ({error!r})") from error

    def _with_context(self, error: SimulatorError, action: str, tries: int, clock: Clock) -> SimulatorError:
        error.action, error.address = action, self.name
        error.tries, error.seconds = tries, clock.elapsed
        busy = isinstance(error, SimulatorBusy)
        error.maybe_executed = error.is_sent and not busy and action not in IDEMPOTENT
        return error


def _may_repeat(error: SimulatorError) -> bool:
    """Return whether a retry is safe: always after a busy answer, after other failures only for idempotent actions."""
    if isinstance(error, SimulatorBusy):
        return True
    temporary = isinstance(error, SimulatorTimeout | SimulatorGone) or error.status == 500
    return temporary and error.action in IDEMPOTENT and error.tries < TRIES


def _check_status(reply: HttpReply) -> None:
    if reply.status != 200:
        error_class = {429: SimulatorBusy, 408: SimulatorTimeout}.get(reply.status, SimulatorAnswer)
        text = excerpt(reply.body.decode(errors="replace"))
        raise error_class(f"status {reply.status}: {text}", status=reply.status)


def _decode(body: bytes) -> Fields:
    try:
        fields = json.loads(body.decode())
    except (ValueError, RecursionError) as error:
        text = excerpt(body.decode(errors="replace"))
        raise SimulatorAnswer(f"the answer is not JSON ({error}): {text}", status=200) from error
    if not isinstance(fields, dict):
        raise SimulatorAnswer(f"the answer is not an object: {excerpt(repr(fields))}", status=200)
    return fields


def _seconds(name: str, value: float) -> float:
    if not 0 < value <= MAX_SECONDS:
        raise ConfigError(f"{name}={value!r} s cannot be a time limit; use more than 0 and at most {MAX_SECONDS:.0f}")
    return value
