"""How requests reach the simulator: over HTTP, one at a time, sent again only where that does no harm."""

from __future__ import annotations

import json
import logging
import time
from http.client import HTTPException, IncompleteRead
from threading import Lock
from typing import Any, Protocol

from envs.clock import Clock
from envs.wah.virtualhome.address import DEFAULT_PORT, parse
from envs.wah.virtualhome.errors import (
    SimulatorAnswer,
    SimulatorBusy,
    SimulatorError,
    SimulatorGone,
    SimulatorTimeout,
    excerpt,
)
from envs.wah.virtualhome.wire import Reply, connect, post
from keep_agent.errors import ConfigError

log = logging.getLogger(__name__)

Request = dict[str, Any]  # action, intParams, stringParams
Fields = dict[str, Any]  # success, message, value, message_list

IDEMPOTENT = frozenset({"idle", "environment_graph", "camera_count", "camera_image", "reset"})
TRIES = 4  # of idempotent requests, whatever fails; a busy simulator is asked until the deadline
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0  # seconds, doubled from one try to the next
LIMIT = 64 << 20  # bytes of an answer; a graph has one or two million
TIMEOUT, DEADLINE = 30.0, 34.0  # seconds: of a request, and of a call with all that is sent again
LONGEST = 86_400.0  # seconds


class Transport(Protocol):
    """What carries a request to whoever answers it. Ids are its own business."""

    name: str  # where the answers come from, for messages

    def exchange(self, request: Request) -> Fields:
        """The answer's fields as they came. Raises `SimulatorError`."""
        ...

    def close(self) -> None: ...


class HttpTransport:
    """A simulator behind a port. A call ends after ``deadline`` seconds whatever happens, a try after ``timeout``."""

    def __init__(
        self,
        url: str = f"http://127.0.0.1:{DEFAULT_PORT}",
        timeout: float = TIMEOUT,
        deadline: float = DEADLINE,
        limit: int = LIMIT,
    ) -> None:
        """``limit`` is in bytes. Raises ConfigError for an address or times that cannot work."""
        self.name = url
        self.address = parse(url)
        self.timeout = _seconds("timeout", timeout)
        self.deadline = _seconds("deadline", deadline)
        self.limit = limit
        self.repeats = 0  # requests that were sent again
        self._alone = Lock()

    def exchange(self, request: Request) -> Fields:
        """Raises `SimulatorBusy`, `SimulatorTimeout`, `SimulatorGone` or `SimulatorAnswer`."""
        clock, action = Clock(self.deadline), request["action"]
        if not self._alone.acquire(timeout=self.deadline):
            raise self._numbered(SimulatorBusy("another thread's call goes on", sent=False), action, 0, clock)
        try:
            return self._insist(request, action, clock)
        finally:
            self._alone.release()

    def close(self) -> None:
        """Nothing to do: every request has a connection of its own."""

    def _insist(self, request: Request, action: str, clock: Clock) -> Fields:
        tries = 1
        while True:
            try:
                return self._attempt(request, Clock(min(self.timeout, clock.rest)))
            except SimulatorError as error:
                pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (tries - 1))
                self._numbered(error, action, tries, clock)
                if not _may_repeat(error) or pause >= clock.rest:
                    raise
                log.info("%s: %s, trying again in %.1f s", action, error.what, pause)
            time.sleep(pause)
            tries += 1
            self.repeats += 1

    def _attempt(self, request: Request, clock: Clock) -> Fields:
        number = str(time.time_ns())
        reply = self._post(json.dumps({"id": number, **request}).encode(), clock)
        _check_status(reply)
        fields = _decode(reply.body)
        if fields.pop("id", None) != number:
            raise SimulatorAnswer("the answer is one to another request", status=reply.status)
        return fields

    def _post(self, body: bytes, clock: Clock) -> Reply:
        try:
            connection = connect(self.address, clock)
        except TimeoutError as error:
            raise SimulatorTimeout("no connection in time", sent=False) from error
        except OSError as error:
            raise SimulatorGone(f"no connection ({error})", sent=False) from error
        try:
            return post(connection, self.address, body, clock, self.limit)
        except TimeoutError as error:
            raise SimulatorTimeout("no whole answer in time") from error
        except (OSError, IncompleteRead) as error:
            raise SimulatorGone(f"the connection broke ({error})") from error
        except (HTTPException, ValueError) as error:  # such as a chunk of a negative size
            raise SimulatorAnswer(f"no proper HTTP ({error!r})") from error

    def _numbered(self, error: SimulatorError, action: str, tries: int, clock: Clock) -> SimulatorError:
        error.action, error.at = action, self.name
        error.tries, error.seconds = tries, clock.gone
        busy = isinstance(error, SimulatorBusy)
        error.uncertain = error.sent and not busy and action not in IDEMPOTENT
        return error


def _may_repeat(error: SimulatorError) -> bool:
    """A busy simulator did nothing. Of anything else nobody knows, so only what may be done twice is sent twice."""
    if isinstance(error, SimulatorBusy):
        return True
    passing = isinstance(error, SimulatorTimeout | SimulatorGone) or error.status == 500
    return passing and error.action in IDEMPOTENT and error.tries < TRIES


def _check_status(reply: Reply) -> None:
    if reply.status != 200:
        kind = {429: SimulatorBusy, 408: SimulatorTimeout}.get(reply.status, SimulatorAnswer)
        said = excerpt(reply.body.decode(errors="replace"))
        raise kind(f"status {reply.status}: {said}", status=reply.status)


def _decode(body: bytes) -> Fields:
    try:
        fields = json.loads(body.decode())
    except (ValueError, RecursionError) as error:
        said = excerpt(body.decode(errors="replace"))
        raise SimulatorAnswer(f"the answer is not JSON ({error}): {said}", status=200) from error
    if not isinstance(fields, dict):
        raise SimulatorAnswer(f"the answer is not an object: {excerpt(repr(fields))}", status=200)
    return fields


def _seconds(name: str, value: float) -> float:
    if not 0 < value <= LONGEST:
        raise ConfigError(f"{name}={value!r} s is no time to wait; use more than 0 and at most {LONGEST:.0f}")
    return value
