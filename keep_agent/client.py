"""Agents behind a server, spoken to as if they were here. Needs httpx alone, and no model."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keep_agent.api import Decision
from keep_agent.errors import ConfigError, KeepError
from keep_agent.facts import NAMES
from memory.disk.atomic import write_atomic

try:
    import httpx
except ImportError as error:
    raise ConfigError("the client needs httpx: pip install 'keep-agent[server]'") from error

if TYPE_CHECKING:
    from envs.outcome import Outcome
    from planners.styles import FactView

AGAIN = (429, 503)  # the server said when to come again
PATIENCE = 30.0  # seconds for which a request is tried again


class ServerError(KeepError, RuntimeError):
    """What a server answered instead of what was asked for."""

    def __init__(self, message: str, status: int = 0, kind: str = "") -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


@dataclass(frozen=True)
class About:
    """An agent as its server has it."""

    id: str
    segments: int
    decisions: int


class Client:
    """A connection to a server. Close it, or use it as a context manager. Safe to call from several threads.

    Requests are tried again while the server is too busy, is not up or lost the connection: none of them does harm
    twice. Every error is a ServerError.

    :param timeout: seconds for one answer
    :param patience: seconds for which a request is tried again
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        timeout: float = 60.0,
        patience: float = PATIENCE,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.url, self._patience = url, patience
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout, transport=transport)

    def agent(self, name: str, create: bool = True) -> RemoteAgent:
        """The agent of that id; one that is not there yet is created, unless ``create`` is false."""
        if create:
            try:
                self.send("POST", "/v1/agents", {"id": name})
            except ServerError as error:
                if error.status != 409:  # it is there
                    raise
        return RemoteAgent(self, name)

    def agents(self) -> list[str]:
        """Ids of those the token is for."""
        return self.send("GET", "/v1/agents").json()["agents"]

    def delete(self, name: str) -> None:
        """Forget an agent for good."""
        self.send("DELETE", f"/v1/agents/{name}")

    def send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, content: bytes | None = None
    ) -> httpx.Response:
        """The answer, if it is a good one."""
        ends = time.monotonic() + self._patience
        while True:
            try:
                response = self._http.request(method, path, json=body, content=content)
            except httpx.TransportError as error:
                wait, failed = 0.5, ServerError(f"{self.url} does not answer ({error or type(error).__name__})")
            else:
                if response.is_success:
                    return response
                wait, failed = _wait(response), error_of(response)
            if wait is None or time.monotonic() + wait > ends:
                raise failed
            time.sleep(wait)

    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Names and data of what is answered bit by bit."""
        try:
            with self._http.stream("POST", path, json=body) as response:
                if not response.is_success:
                    response.read()
                    raise error_of(response)
                name = ""
                for line in response.iter_lines():
                    field, _, value = line.partition(": ")
                    if field == "event":
                        name = value
                    elif field == "data":
                        yield name, json.loads(value)
        except httpx.TransportError as error:
            raise ServerError(f"{self.url} does not answer ({error or type(error).__name__})") from error

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class RemoteAgent:
    """`keep_agent.api.Planning` behind a server: observe, plan and report as with an `Agent` here."""

    def __init__(self, client: Client, name: str) -> None:
        self.name, self._client, self._path = name, client, f"/v1/agents/{name}"
        self._number: int | None = None  # of the last decision

    def observe(self, facts: Iterable[FactView | Mapping[str, Any]]) -> None:
        self._client.send("POST", f"{self._path}/observe", {"facts": [_row(fact) for fact in facts]})

    def plan(
        self,
        instruction: str,
        skills: Sequence[str],
        ready: Callable[[dict[str, Any]], None] | None = None,
        trace: str = "summary",
    ) -> Decision:
        """Choose the next of ``skills``.

        :param ready: told what the prompt cost, when it is ready and the choice begins
        :param trace: none | summary | full: how much the decision's trace holds
        """
        body = {"instruction": instruction, "skills": list(skills), "trace": trace}
        path = f"{self._path}/plan"
        found = self._client.send("POST", path, body).json() if ready is None else self._heard(path, body, ready)
        self._number = found["number"]
        scores = tuple((skill, score) for skill, score in found["scores"])
        return Decision(found["skill"], scores, found["trace"], found["number"])

    def report(self, outcome: Outcome) -> None:
        body = {"ok": outcome.ok, "message": outcome.message, "number": self._number}
        self._client.send("POST", f"{self._path}/report", body)

    def finish(self, success: bool) -> None:
        self._client.send("POST", f"{self._path}/finish", {"success": success})

    def about(self) -> About:
        return About(**self._client.send("GET", self._path).json())

    def save(self, path: str | Path) -> None:
        """Write what the agent remembers to a file here; `Agent.load` reads it, too."""
        write_atomic(Path(path), self._client.send("GET", f"{self._path}/memory").content)

    def load(self, path: str | Path) -> None:
        """Let the agent remember what `save` wrote, and nothing else."""
        self._client.send("PUT", f"{self._path}/memory", content=Path(path).read_bytes())

    def _heard(self, path: str, body: Mapping[str, Any], ready: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        for name, data in self._client.events(path, {**body, "stream": True}):
            if name == "ready":
                ready(data)
            elif name == "decision":
                return data
            elif name == "error":
                raise ServerError(data["error"]["message"], kind=data["error"]["type"])
        raise ServerError("the server ended its answer before the decision; ask again")


def error_of(response: httpx.Response) -> ServerError:
    """What a server says is wrong."""
    try:
        said = response.json()["error"]
        return ServerError(f"{said['message']} ({response.status_code})", response.status_code, said["type"])
    except (ValueError, KeyError, TypeError):
        return ServerError(f"the server answered {response.status_code}: {response.text[:200]}", response.status_code)


def _wait(response: httpx.Response) -> float | None:
    """Seconds after which to come again, if the server said so."""
    after = response.headers.get("Retry-After", "")
    return float(after) if response.status_code in AGAIN and after.isdecimal() else None


def _row(fact: FactView | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(fact, Mapping):
        return dict(fact)
    row = {name: getattr(fact, name) for name in NAMES if hasattr(fact, name)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in row.items()}
