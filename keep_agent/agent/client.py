"""Agents behind a server, spoken to as if they were here. Needs httpx alone, and no model."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    from planners.prompts.text import FactView

AGAIN = (429, 503)  # the server said when to come again
TIMEOUT = 60.0  # seconds for one answer
PATIENCE = 30.0  # seconds after the first failure in which a request is sent again
PAUSE = 0.5  # seconds before that, where the server did not say
# the same request again would end the same
USELESS = (httpx.UnsupportedProtocol, httpx.LocalProtocolError, httpx.DecodingError, httpx.TooManyRedirects)
T = TypeVar("T")


class ServerError(KeepError, RuntimeError):
    """What a server answered instead of what was asked for.

    :param retry_after: seconds after which the same may go well
    """

    def __init__(self, message: str, status: int = 0, kind: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.retry_after = status, kind, retry_after


@dataclass(frozen=True)
class About:
    """An agent as its server has it."""

    id: str
    segments: int
    decisions: int


class Client:
    """A connection to a server. Close it, or use it as a context manager. Safe to call from several threads.

    A request is sent again while the server is too busy, is not up, answers too late or loses the connection: none
    does harm twice. Every error is a ServerError; a value of the wrong type is refused before anything is sent.

    :param timeout: seconds for one answer
    :param patience: seconds after the first failure in which a request is sent again; so a call takes at most this and
        twice the timeout
    :raises ConfigError: a url that is none
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        timeout: float = TIMEOUT,
        patience: float = PATIENCE,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.url, self._patience = url, patience
        try:
            known = httpx.URL(url).scheme in ("http", "https") and httpx.URL(url).host != ""
        except httpx.InvalidURL:
            known = False
        if not known:
            raise ConfigError(f"url={url!r} cannot be reached: give one such as http://localhost:8000")
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout, transport=transport)

    def agent(self, name: str, create: bool = True) -> RemoteAgent:
        """The agent of that id; one that is not there yet is created, unless ``create`` is false."""
        if create:
            try:
                self.ask("POST", "/v1/agents", _about, json={"id": name})
            except ServerError as error:
                if error.status != 409:  # it is there
                    raise
        return RemoteAgent(self, name)

    def agents(self) -> list[str]:
        """Ids of those the token is for."""
        return self.ask("GET", "/v1/agents", lambda found: list(found["agents"]))

    def delete(self, name: str) -> None:
        """Forget an agent for good."""
        lost = False

        def once() -> None:
            nonlocal lost
            try:
                self._once("DELETE", _path(name))
            except ServerError as error:
                if not (lost and error.status == 404):  # else the answer was lost, not the request
                    lost = True
                    raise

        self.patiently(once)

    def ask(self, method: str, path: str, read: Callable[[Any], T], **body: Any) -> T:
        """What ``read`` makes of the JSON that is answered; ``body`` as for `send`."""
        return _read(read, self.send(method, path, **body).text)

    def send(self, method: str, path: str, **body: Any) -> httpx.Response:
        """The answer, if it is a good one.

        :param body: ``json`` or ``content``, as httpx takes them
        """
        return self.patiently(partial(self._once, method, path, **body))

    def _once(self, method: str, path: str, **body: Any) -> httpx.Response:
        with self._reached():
            return _good(self._http.request(method, path, **body))

    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Names and data of what is answered bit by bit. Sent once: see `patiently`."""
        with self._reached(), self._http.stream("POST", path, json=body) as response:
            if not response.is_success:
                response.read()
            _good(response)
            name = ""
            for line in lines(response.iter_bytes()):
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                elif field == "data":
                    yield name, value

    def patiently(self, once: Callable[[], T]) -> T:
        """What ``once`` gives, which is called again while the same may go well later."""
        ends = None
        while True:
            try:
                return once()
            except ServerError as error:
                ends = ends or time.monotonic() + self._patience
                if error.retry_after is None or time.monotonic() + error.retry_after > ends:
                    raise
                time.sleep(error.retry_after)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except httpx.RequestError as error:
            again = None if isinstance(error, USELESS) else PAUSE
            said = f"{self.url} does not answer ({error or type(error).__name__})"
            raise ServerError(said, retry_after=again) from error

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class RemoteAgent:
    """`keep_agent.agent.types.Planning` behind a server: observe, plan and report as with an `Agent` here."""

    def __init__(self, client: Client, name: str) -> None:
        self.name, self._client, self._path = name, client, _path(name)
        self._number: int | None = None  # of the last decision

    def observe(self, facts: Iterable[FactView | Mapping[str, Any]]) -> None:
        self._tell("observe", {"facts": [fields_of(fact) for fact in as_list(facts)]})

    def plan(
        self, instruction: str, skills: Sequence[str], ready: Ready | None = None, trace: str = "summary"
    ) -> Decision:
        """Choose the next of ``skills``.

        A ServerError of status 409 says that somebody else has planned since: `report` is about that decision then.

        :param ready: told what the prompt cost, when it is ready and the choice begins; again, if it was asked again
        :param trace: none | summary | full: how much the decision's trace holds
        """
        body = {"instruction": instruction, "skills": list(skills), "trace": trace, "after": self._last()}
        path = f"{self._path}/plan"
        try:
            if ready is None:
                found = self._client.ask("POST", path, _decision, json=body)
            else:
                found = self._client.patiently(lambda: self._heard(path, body, ready))
        except ServerError as error:
            self._number = None if error.status == 409 else self._number
            raise
        self._number = found.number
        return found

    def report(self, outcome: Outcome) -> None:
        """Tell what became of the last decision. Raises ConfigError for what is no `Outcome`."""
        check_outcome(outcome)
        self._tell("report", {"ok": outcome.ok, "message": outcome.message, "number": self._last()})

    def finish(self, success: bool) -> None:
        """End the task. Raises ConfigError for a ``success`` that is neither True nor False."""
        self._tell("finish", {"success": checked_flag("success", success)})
        self._number = None  # a decision whose answer was lost is over as well

    def about(self) -> About:
        return self._client.ask("GET", self._path, _about)

    def save(self, path: str | Path) -> None:
        """Write what the agent remembers to a file here; `Agent.load` reads it, too."""
        target = memory_path(path)
        content = self._client.send("GET", f"{self._path}/memory").content
        if not content.startswith(MAGIC.encode()):
            raise _unexpected(content[:80].decode(errors="replace"))
        write_atomic(target, content)

    def load(self, path: str | Path) -> None:
        """Let the agent remember what `save` wrote, and nothing else."""
        self._client.ask("PUT", f"{self._path}/memory", _about, content=memory_path(path).read_bytes())
        self._number = None

    def _last(self) -> int:
        """Number of the last decision: with it, what is sent twice happens once."""
        if self._number is None:
            self._number = self.about().decisions
        return self._number

    def _tell(self, what: str, body: Mapping[str, Any]) -> None:
        self._client.ask("POST", f"{self._path}/{what}", _about, json=body)

    def _heard(self, path: str, body: Mapping[str, Any], ready: Ready) -> Decision:
        for name, data in self._client.events(path, {**body, "stream": True}):
            if name == "ready":
                ready(_read(dict, data))
            elif name == "decision":
                return _read(_decision, data)
            elif name == "error":
                raise _read(_error_event, data)
        raise ServerError("the server ended its answer before the decision; ask again", retry_after=PAUSE)


def lines(parts: Iterable[bytes]) -> Iterator[str]:
    """Split at newlines alone: JSON may hold all other characters that Unicode takes for the end of a line."""
    rest = b""
    for part in parts:
        *whole, rest = (rest + part).split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)
    yield rest.decode(errors="replace")


def _path(name: str) -> str:
    return f"/v1/agents/{quote(name, safe='')}"


def _about(found: Any) -> About:
    return About(**found)


def _decision(found: Any) -> Decision:
    scores = tuple((skill, score) for skill, score in found["scores"])
    return Decision(found["skill"], scores, found["trace"], found["number"], tuple(found.get("warnings", ())))


def _error_event(found: Any) -> ServerError:
    """An error that came when the answer had begun."""
    status, said = found.get("status", 0), found["error"]
    return ServerError(said["message"], status, said["type"], PAUSE if status in AGAIN else None)


def _read(read: Callable[[Any], T], text: str) -> T:
    """What ``read`` makes of some JSON. Raises ServerError for what no server of ours answers."""
    try:
        return read(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unexpected(text) from error


def _unexpected(text: str) -> ServerError:
    return ServerError(f"no server of KEEP Agent answers with {text[:80]!r}: is there a proxy, or another server?")


def _good(response: httpx.Response) -> httpx.Response:
    if response.is_success:
        return response
    raise error_of(response)


def error_of(response: httpx.Response) -> ServerError:
    """What a server says is wrong."""
    try:
        said = response.json()["error"]
        message, kind = f"{said['message']} ({response.status_code})", said["type"]
    except (ValueError, KeyError, TypeError, RecursionError):
        message, kind = f"the server answered {response.status_code}: {response.text[:200]}", ""
    return ServerError(message, response.status_code, kind, _wait(response))


def _wait(response: httpx.Response) -> float | None:
    """Seconds after which to come again, if the server said so."""
    after = response.headers.get("Retry-After", "")
    return float(after) if response.status_code in AGAIN and after.isdecimal() else None
