"""Client of a KEEP Agent server, whose agents are used like a local `Agent`. Needs httpx, but no model."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from envs.outcome import Outcome, checked_flag
from keep_agent.agent.memory_file import MAGIC, memory_path
from keep_agent.agent.types import Decision, Ready
from keep_agent.agent.validation import as_list, check_outcome, fields_of
from keep_agent.errors import ConfigError, KeepError
from memory.files.atomic import write_atomic

try:
    import httpx
except ImportError as error:
    raise ConfigError("the client needs httpx: pip install 'keep-agent[server]'") from error

if TYPE_CHECKING:
    from planners.prompts.styles import FactView

RETRY_STATUSES = (429, 503)  # statuses after which a retry may succeed
TIMEOUT = 60.0  # seconds for one answer
RETRY_TIME = 30.0  # seconds after a request's first failure during which it is retried
RETRY_PAUSE = 0.5  # seconds before a retry after a lost connection or an error event; error responses send Retry-After
# errors that a retry cannot fix
PERMANENT_ERRORS = (httpx.UnsupportedProtocol, httpx.LocalProtocolError, httpx.DecodingError, httpx.TooManyRedirects)
T = TypeVar("T")


class ServerError(KeepError, RuntimeError):
    """Error response, or no valid response. ``retry_after``: seconds until a retry may succeed; None: do not retry."""

    def __init__(self, message: str, status: int = 0, kind: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.retry_after = status, kind, retry_after


@dataclass(frozen=True)
class AgentInfo:
    id: str
    segments: int
    decisions: int


class Client(AbstractContextManager["Client"]):
    """A connection to a server. Close it, or use it as a context manager. Safe to call from several threads.

    A request is retried while the server is busy, down or too slow, or the connection is lost. A request that arrives
    twice has no second effect. A failed request raises ServerError.

    :param token: access token, if the server has tokens
    :param timeout: seconds for one answer
    :param patience: seconds after a request's first failure during which retries may start
    :param transport: replaces the network connection, for tests
    :raises ConfigError: an invalid URL
    """

    def __init__(
        self, url: str, token: str | None = None, timeout: float = TIMEOUT, patience: float = RETRY_TIME,
        transport: httpx.BaseTransport | None = None,
    ) -> None:  # fmt: skip
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.url, self._patience = url, patience
        try:
            is_known = httpx.URL(url).scheme in ("http", "https") and httpx.URL(url).host != ""
        except httpx.InvalidURL:
            is_known = False
        if not is_known:
            raise ConfigError(f"url={url!r} is not the address of a server: give one such as http://localhost:8000")
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout, transport=transport)

    def agent(self, name: str, create: bool = True) -> RemoteAgent:
        """Return the agent with the id ``name``; create it if it does not exist and ``create`` is true."""
        if create:
            try:
                self.request_json("POST", "/v1/agents", _about, json={"id": name})
            except ServerError as error:
                if error.status != 409:  # 409: the agent exists
                    raise
        return RemoteAgent(self, name)

    def agents(self) -> list[str]:
        return self.request_json("GET", "/v1/agents", lambda body: list(body["agents"]))

    def delete(self, name: str) -> None:
        has_failed = False

        def attempt() -> None:
            nonlocal has_failed
            try:
                self._send_once("DELETE", _path(name))
            except ServerError as error:
                if not (has_failed and error.status == 404):  # 404 after a failed try: that try deleted the agent
                    has_failed = True
                    raise

        self.with_retries(attempt)

    def request_json(self, method: str, path: str, read: Callable[[Any], T], **body: Any) -> T:
        """Send a request as `send` does; return the JSON of the response, converted by ``read``."""
        return _parse_answer(read, self.send(method, path, **body).text)

    def send(self, method: str, path: str, **body: Any) -> httpx.Response:
        """Send a request, whose body is ``json`` or ``content``; return the successful response."""
        return self.with_retries(partial(self._send_once, method, path, **body))

    def _send_once(self, method: str, path: str, **body: Any) -> httpx.Response:
        with self._connection_errors():
            return _check_response(self._http.request(method, path, **body))

    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield name and data of each server-sent event of a response. Never retries; callers use `with_retries`."""
        with self._connection_errors(), self._http.stream("POST", path, json=body) as response:
            if not response.is_success:
                response.read()
            _check_response(response)
            name = ""
            for line in split_lines(response.iter_bytes()):
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                elif field == "data":
                    yield name, value

    def with_retries(self, attempt: Callable[[], T]) -> T:
        """Return the result of ``attempt``. Repeat it for up to ``patience`` s after errors with a ``retry_after``."""
        deadline = None
        while True:
            try:
                return attempt()
            except ServerError as error:
                deadline = deadline or time.monotonic() + self._patience
                if error.retry_after is None or time.monotonic() + error.retry_after > deadline:
                    raise
                time.sleep(error.retry_after)

    @contextmanager
    def _connection_errors(self) -> Iterator[None]:
        try:
            yield
        except httpx.RequestError as error:
            retry_after = None if isinstance(error, PERMANENT_ERRORS) else RETRY_PAUSE
            message = f"{self.url} does not answer ({error or type(error).__name__})"
            raise ServerError(message, retry_after=retry_after) from error

    def close(self) -> None:
        self._http.close()

    def __exit__(self, *error: object) -> None:
        self.close()


class RemoteAgent:
    """Agent on a server, with the calls of a local `Agent`."""

    def __init__(self, client: Client, name: str) -> None:
        self.name, self._client, self._path = name, client, _path(name)
        self._number: int | None = None  # number of the last decision; None: not known

    def observe(self, facts: Iterable[FactView | Mapping[str, Any]]) -> None:
        self._post("observe", {"facts": [fields_of(fact) for fact in as_list(facts)]})

    def plan(
        self, instruction: str, skills: Sequence[str], ready: Ready | None = None, trace: str = "summary"
    ) -> Decision:
        """Choose the next of ``skills``. Raises ServerError, with status 409 if another client has planned in between.

        :param ready: called with the cost of the prompt between prefill and choice, and again if the request is retried
        :param trace: detail of the decision's trace: none, summary or full
        """
        body = {"instruction": instruction, "skills": list(skills), "trace": trace, "after": self._last_number()}
        path = f"{self._path}/plan"
        try:
            if ready is None:
                decision = self._client.request_json("POST", path, _decision, json=body)
            else:
                decision = self._client.with_retries(lambda: self._stream(path, body, ready))
        except ServerError as error:
            self._number = None if error.status == 409 else self._number
            raise
        self._number = decision.number
        return decision

    def report(self, outcome: Outcome) -> None:
        """Report the result of the last decision. Raises ConfigError for a value that is not an `Outcome`."""
        check_outcome(outcome)
        self._post("report", {"ok": outcome.ok, "message": outcome.message, "number": self._last_number()})

    def finish(self, success: bool) -> None:
        """End the task. Raises ConfigError for a ``success`` that is neither True nor False."""
        self._post("finish", {"success": checked_flag("success", success)})
        self._number = None  # there may be a later decision, whose response was lost

    def about(self) -> AgentInfo:
        return self._client.request_json("GET", self._path, _about)

    def save(self, path: str | Path) -> None:
        """Write the agent's memory to a local file, which `Agent.load` can also read."""
        target = memory_path(path)
        content = self._client.send("GET", f"{self._path}/memory").content
        if not content.startswith(MAGIC.encode()):
            raise _unexpected_answer(content[:80].decode(errors="replace"))
        write_atomic(target, content)

    def load(self, path: str | Path) -> None:
        self._client.request_json("PUT", f"{self._path}/memory", _about, content=memory_path(path).read_bytes())
        self._number = None

    def _last_number(self) -> int:
        """Return the number of the last decision. By this number the server recognizes a repeated request."""
        if self._number is None:
            self._number = self.about().decisions
        return self._number

    def _post(self, what: str, body: Mapping[str, Any]) -> None:
        self._client.request_json("POST", f"{self._path}/{what}", _about, json=body)

    def _stream(self, path: str, body: Mapping[str, Any], ready: Ready) -> Decision:
        for name, data in self._client.events(path, {**body, "stream": True}):
            if name == "ready":
                ready(_parse_answer(dict, data))
            elif name == "decision":
                return _parse_answer(_decision, data)
            elif name == "error":
                raise _parse_answer(_error_event, data)
        raise ServerError("the response ended before the decision; send the request again", retry_after=RETRY_PAUSE)


def split_lines(parts: Iterable[bytes]) -> Iterator[str]:
    """Split bytes into lines at newlines only, since JSON may contain the other line separators of Unicode."""
    rest = b""
    for part in parts:
        *complete, rest = (rest + part).split(b"\n")
        yield from (line.decode(errors="replace") for line in complete)
    yield rest.decode(errors="replace")


def _path(name: str) -> str:
    return f"/v1/agents/{quote(name, safe='')}"


def _about(body: Any) -> AgentInfo:
    return AgentInfo(**body)


def _decision(body: Any) -> Decision:
    scores = tuple((skill, score) for skill, score in body["scores"])
    return Decision(body["skill"], scores, body["trace"], body["number"], tuple(body.get("warnings", ())))


def _error_event(body: Any) -> ServerError:
    status, error = body.get("status", 0), body["error"]
    return ServerError(error["message"], status, error["type"], RETRY_PAUSE if status in RETRY_STATUSES else None)


def _parse_answer(read: Callable[[Any], T], text: str) -> T:
    """Parse JSON and convert it by ``read``. Raises ServerError for content that no KEEP Agent server sends."""
    try:
        return read(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unexpected_answer(text) from error


def _unexpected_answer(text: str) -> ServerError:
    return ServerError(f"a KEEP Agent server would not answer with {text[:80]!r}: is there a proxy, or another server?")


def _check_response(response: httpx.Response) -> httpx.Response:
    """Return a successful response. Raises ServerError for any other, with the server's retry time."""
    if response.is_success:
        return response
    status, after = response.status_code, response.headers.get("Retry-After", "")
    try:
        error = response.json()["error"]
        message, kind = f"{error['message']} ({status})", error["type"]
    except (ValueError, KeyError, TypeError, RecursionError):
        message, kind = f"the server answered {status}: {response.text[:200]}", ""
    raise ServerError(message, status, kind, float(after) if status in RETRY_STATUSES and after.isdecimal() else None)
