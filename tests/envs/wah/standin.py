"""A stand-in for the VirtualHome simulator: its protocol over HTTP in front of any home, and faults on demand.

Statuses and messages: Communication.cs and TestDriver.cs of the simulator's source (xavierpuigf/virtualhome_unity).
The six actions that LoTA-Bench uses, idle and camera_image are known, the others are unknown actions.
"""

from __future__ import annotations

import base64
import json
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from types import TracebackType
from typing import Any, Protocol, Self

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)  # a PNG file
MODES = ("normal", "seg_inst", "seg_class", "depth", "flow", "albedo", "illumination", "surf_normals")
CHUNK = b" " * (1 << 16)


class Home(Protocol):
    """What the stand-in is in front of."""

    def reset(self, scene: int | None) -> None:
        """Raises IndexError for a scene that is not there."""

    def graph(self) -> dict[str, Any]: ...

    def expand(self, graph: dict[str, Any]) -> None: ...

    def add_character(self, room: str | None) -> bool: ...

    def run(self, lines: list[str]) -> tuple[bool, str]:
        """Whether the script ran, and the executor's report if it did not."""
        ...


@dataclass
class Answer:
    """What the simulator calls NetworkResponse, less the id."""

    success: bool
    message: str | None = ""
    value: int = 0
    message_list: list[str] | None = None


class StandIn:
    """A server on a port of its own; a block's end stops it, with all its threads and connections.

    ``faults`` are names out of `FAULTS`; each is used up by one request. ``seen`` are all requests that could be read,
    ``cameras`` the number that is answered, ``drip_seconds`` the time between two bytes, ``raw`` what the fault of that
    name sends.
    """

    def __init__(self, home: Home, cameras: int = 42, drip_seconds: float = 0.02) -> None:
        self.home, self.cameras, self.drip_seconds = home, cameras, drip_seconds
        self.faults: deque[str] = deque()
        self.seen: list[dict[str, Any]] = []
        self.raw = b""
        self.characters = 0
        self.stopped = Event()
        self.alone = Lock()
        self._server = _Server(self)
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,), name="stand-in")
        self._thread.start()

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def actions(self) -> list[str]:
        """Of all requests seen, in order."""
        return [request["action"] for request in self.seen]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """End like a process that is killed: nobody listens, and open connections break. Again: nothing."""
        if not self.stopped.is_set():
            self.stopped.set()
            self._server.shutdown()
            self._server.break_connections()
            self._server.server_close()  # waits for the threads
            self._thread.join()

    def do(self, request: dict[str, Any]) -> Answer:
        """What the simulator does with a request that it could read."""
        act = _ACTIONS.get(request.get("action", ""))
        if act is None:
            return Answer(False, f"Unknown action {request.get('action')}")
        return act(self, request.get("intParams") or [], request.get("stringParams") or [])


Act = Callable[[StandIn, list[int], list[str]], Answer]


def _idle(standin: StandIn, ints: list[int], texts: list[str]) -> Answer:
    return Answer(True)


def _reset(standin: StandIn, ints: list[int], texts: list[str]) -> Answer:
    try:
        standin.home.reset(ints[0] if ints else None)
    except IndexError:
        return Answer(False, "Invalid scene index")
    standin.characters = 0
    return _graph(standin, ints, texts)


def _graph(standin: StandIn, ints: list[int], texts: list[str]) -> Answer:
    return Answer(True, json.dumps(standin.home.graph()))


def _expand(standin: StandIn, ints: list[int], texts: list[str]) -> Answer:
    try:
        _, graph = json.loads(texts[0]), json.loads(texts[1])
    except ValueError as error:
        return Answer(False, f"Error deserializing params: {error}")
    try:
        standin.home.expand(graph)
    except Exception as error:  # as the simulator does
        return Answer(False, f"Error processing input graph: {error}")
    return Answer(True, json.dumps({}))


def _cameras(standin: StandIn, ints: list[int], texts: list[str]) -> Answer:
    return Answer(True, None, value=standin.cameras)


def _images(standin: StandIn, ints: list[int], texts: list[str]) -> Answer:
    if not all(0 <= index < standin.cameras for index in ints):
        return Answer(False, "Invalid parameters")
    if json.loads(texts[0])["mode"] not in MODES:
        return Answer(False, "The current camera mode does not exist")
    return Answer(True, None, message_list=[base64.b64encode(PIXEL).decode()] * len(ints))


def _add_character(standin: StandIn, ints: list[int], texts: list[str]) -> Answer:
    config = json.loads(texts[0])
    added = standin.home.add_character(config["initial_room"] if config["mode"] == "fix_room" else None)
    standin.characters += added
    return Answer(added, None)


def _run(standin: StandIn, ints: list[int], texts: list[str]) -> Answer:
    if not standin.characters:
        return Answer(False, "No character added yet!")
    json.loads(texts[0])
    success, report = standin.home.run(texts[1:])
    return Answer(success, "" if success else f"ScriptExcutor 0: {report}\n")


_ACTIONS: dict[str, Act] = {
    "idle": _idle,
    "reset": _reset,
    "environment_graph": _graph,
    "expand_scene": _expand,
    "camera_count": _cameras,
    "camera_image": _images,
    "add_character": _add_character,
    "render_script": _run,
}


class _Server(ThreadingHTTPServer):
    """One thread per connection; all of them end with the server."""

    daemon_threads = False
    block_on_close = True

    def __init__(self, standin: StandIn) -> None:
        self.standin = standin
        self._connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, client = super().get_request()
        self._connections.add(connection)
        return connection, client

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def break_connections(self) -> None:
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The client has gone, or the stand-in was killed: nothing to say."""


class _Handler(BaseHTTPRequestHandler):
    """One connection. A request either meets a fault, or is done and answered."""

    server: _Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        standin, text = self.server.standin, self.rfile.read(int(self.headers["Content-Length"] or 0))
        if not text:
            self.answer(400, _fields("", Answer(False, "Request body is null or empty")))
            return
        try:
            request = json.loads(text)
            standin.seen.append(request)
            number = request.get("id")
        except (ValueError, AttributeError) as error:
            self.answer(400, _fields("", Answer(False, f"Invalid request format ({error})")))
            return
        if standin.faults:
            FAULTS[standin.faults.popleft()](self, request)
        else:
            self.answer(*self.processed(request, number))

    def processed(self, request: dict[str, Any], number: Any) -> tuple[int, dict[str, Any]]:
        """Status and fields after doing what is asked, unless another request is at work."""
        standin = self.server.standin
        if not standin.alone.acquire(blocking=False):
            return 429, _fields(number, Answer(False, "Busy"))
        try:
            return 200, _fields(number, standin.do(request))
        except Exception as error:  # as the simulator does
            return 500, _fields(number, Answer(False, f"Unknown error ({error})"))
        finally:
            standin.alone.release()

    def answer(self, status: int, content: Any) -> None:
        self.send(status, json.dumps(content).encode())

    def send(self, status: int, body: bytes, length: int | None = None, location: str | None = None) -> None:
        """``length`` is what the header says if that is wrong."""
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(body) if length is None else length))
        if location is not None:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Tests are quiet."""


def _fields(number: Any, answer: Answer) -> dict[str, Any]:
    return {"id": number} | vars(answer)


def _raw(handler: _Handler, request: dict[str, Any]) -> None:
    """Bytes of the test's own, in which ID stands for the request's id."""
    handler.wfile.write(handler.server.standin.raw.replace(b"ID", request["id"].encode()))
    handler.close_connection = True


Fault = Callable[[_Handler, dict[str, Any]], None]


def _status(status: int, message: str) -> Fault:
    """Nothing is done."""
    return lambda handler, request: handler.answer(status, _fields(request["id"], Answer(False, message)))


def _body(change: Callable[[dict[str, Any]], bytes]) -> Fault:
    """All is done, but told wrongly."""
    return lambda handler, request: handler.send(200, change(handler.processed(request, request["id"])[1]))


def _changed(**changes: Any) -> Fault:
    """Fields are replaced; those that become None are left out."""

    def change(fields: dict[str, Any]) -> bytes:
        kept = {name: value for name, value in (fields | changes).items() if changes.get(name, ...) is not None}
        return json.dumps(kept).encode()

    return _body(change)


def _hang(handler: _Handler, request: dict[str, Any]) -> None:
    handler.server.standin.stopped.wait()


def _drip(handler: _Handler, request: dict[str, Any]) -> None:
    standin = handler.server.standin
    for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 500000\r\n\r\n" + b" " * 500000:
        handler.wfile.write(bytes([byte]))
        if standin.stopped.wait(standin.drip_seconds):
            return


def _close(handler: _Handler, request: dict[str, Any]) -> None:
    handler.close_connection = True


def _half(handler: _Handler, request: dict[str, Any]) -> None:
    text = json.dumps(handler.processed(request, request["id"])[1]).encode()
    handler.send(200, text[: len(text) // 2], len(text))
    handler.close_connection = True


def _short(handler: _Handler, request: dict[str, Any]) -> None:
    text = json.dumps(handler.processed(request, request["id"])[1]).encode()
    handler.send(200, text, len(text) - 1)
    handler.close_connection = True


def _huge(handler: _Handler, request: dict[str, Any]) -> None:
    """Without end, and without saying so."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while not handler.server.standin.stopped.is_set():
        handler.wfile.write(CHUNK)


def _announced(handler: _Handler, request: dict[str, Any]) -> None:
    handler.send(200, b"{}", 1 << 40)
    handler.close_connection = True


def _not_http(handler: _Handler, request: dict[str, Any]) -> None:
    handler.wfile.write(b"220 mail.example.org ESMTP\r\n")
    handler.close_connection = True


FAULTS: dict[str, Fault] = {
    "busy": _status(429, "Busy"),
    "timeout": _status(408, "Timeout"),
    "error": _status(500, "Unknown error (Object reference not set to an instance of an object)"),
    "bad_json": _body(lambda fields: b'{"id": '),
    "not_utf8": _body(lambda fields: b'{"id": "\xff"}'),
    "deep": _body(lambda fields: b"[" * 100_000),
    "not_an_object": _body(lambda fields: b"[1]"),
    "wrong_id": _changed(id="another"),
    "no_success": _changed(success=None),
    "wrong_type": _changed(success="yes"),
    "no_value": _changed(value=None, message=None, message_list=None),
    "bad_graph": _changed(success=True, message='{"nodes": ['),
    "no_graph": _changed(success=True, message='{"nodes": {}, "edges": []}'),
    "bad_image": _changed(success=True, message_list=["?"]),
    "hang": _hang,
    "drip": _drip,
    "close": _close,
    "half": _half,
    "short": _short,
    "huge": _huge,
    "announced": _announced,
    "redirect": lambda handler, request: handler.send(302, b"", location=handler.server.standin.url),
    "not_http": _not_http,
    "raw": _raw,
}
