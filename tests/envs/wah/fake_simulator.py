"""Fake VirtualHome simulator: the protocol over HTTP with any home as its backend, and faults on demand.

Statuses and messages: Communication.cs and TestDriver.cs of the simulator's source (xavierpuigf/virtualhome_unity).
It knows the six actions that LoTA-Bench uses, and idle.
"""

from __future__ import annotations

import json
import socket
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from threading import Event, Lock, Thread
from typing import Any, Protocol


class Home(Protocol):
    """Backend of the fake simulator."""

    def reset(self, scene: int | None) -> None:
        """Load a scene. Raises IndexError for an unknown one."""

    def graph(self) -> dict[str, Any]: ...

    def expand(self, graph: dict[str, Any]) -> None: ...

    def add_character(self, room: str | None) -> bool: ...

    def run(self, lines: list[str]) -> tuple[bool, str]:
        """Return whether the script ran, and the executor's report if it failed."""
        ...


Answer = dict[str, Any]  # the simulator's NetworkResponse


def answer(success: bool, message: str | None = "", value: int = 0) -> Answer:
    return {"id": "", "success": success, "message": message, "value": value, "message_list": None}


class FakeSimulator(AbstractContextManager["FakeSimulator"]):
    """Server on a free port; the end of a ``with`` block stops it with all its threads and connections.

    ``faults`` are names of `FAULTS`, one for each of the next requests. ``requests`` are all requests so far,
    ``cameras`` the answer to camera_count, ``drip_seconds`` the time between two bytes, ``raw`` the bytes that the
    fault "raw" sends.
    """

    def __init__(self, home: Home, cameras: int = 42, drip_seconds: float = 0.02) -> None:
        self.home, self.cameras, self.drip_seconds = home, cameras, drip_seconds
        self.faults: deque[str] = deque()
        self.requests: list[dict[str, Any]] = []
        self.raw = b""
        self.characters = 0
        self.stopped = Event()
        self.lock = Lock()
        self._server = _Server(self)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,), name="fake simulator")
        self._thread.start()

    def actions(self) -> list[str]:
        """Return the actions of all requests, in order."""
        return [request["action"] for request in self.requests]

    def __exit__(self, *error: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Stop like a killed process: close the port and break open connections. A second call has no effect."""
        if not self.stopped.is_set():
            self.stopped.set()
            self._server.shutdown()
            for connection in self._server.connections:
                with suppress(OSError):  # closed before
                    connection.shutdown(socket.SHUT_RDWR)
            self._server.server_close()  # waits for the threads
            self._thread.join()

    def do(self, action: str, ints: list[int], texts: list[str]) -> Answer:
        """Execute an action with its parameters."""
        match action:
            case "idle":
                return answer(True)
            case "reset":
                try:
                    self.home.reset(ints[0] if ints else None)
                except IndexError:
                    return answer(False, "Invalid scene index")
                self.characters = 0
                return answer(True, json.dumps(self.home.graph()))
            case "environment_graph":
                return answer(True, json.dumps(self.home.graph()))
            case "expand_scene":
                try:
                    self.home.expand(json.loads(texts[1]))
                except Exception as error:  # as the simulator does
                    return answer(False, f"Error processing input graph: {error}")
                return answer(True, "{}")
            case "camera_count":
                return answer(True, None, self.cameras)
            case "add_character":
                config = json.loads(texts[0])
                added = self.home.add_character(config["initial_room"] if config["mode"] == "fix_room" else None)
                self.characters += added
                return answer(added, None)
            case "render_script":
                if not self.characters:
                    return answer(False, "No character added yet!")
                success, report = self.home.run(texts[1:])
                return answer(success, "" if success else f"ScriptExcutor 0: {report}\n")
        raise ValueError(action)


class _Server(ThreadingMixIn, HTTPServer):
    """HTTP server with one thread per connection; all of them end with the server."""

    def __init__(self, simulator: FakeSimulator) -> None:
        self.simulator, self.connections = simulator, list[socket.socket]()
        super().__init__(("127.0.0.1", 0), _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, client = super().get_request()
        self.connections.append(connection)
        return connection, client

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: the client has disconnected, or the server was killed."""


class _Handler(BaseHTTPRequestHandler):
    """Handler of one connection. A request triggers the next fault, or is executed and answered."""

    server: _Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        simulator, request = self.server.simulator, json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        simulator.requests.append(request)
        if simulator.faults:
            FAULTS[simulator.faults.popleft()](self, request)
        else:
            self.answer(*self.execute(request))

    def execute(self, request: dict[str, Any]) -> tuple[int, Answer]:
        """Execute a request, unless another one is running, and return status and fields."""
        simulator, number = self.server.simulator, {"id": request["id"]}
        if not simulator.lock.acquire(blocking=False):
            return 429, answer(False, "Busy") | number
        try:
            ints, texts = request.get("intParams") or [], request.get("stringParams") or []
            return 200, simulator.do(request["action"], ints, texts) | number
        finally:
            simulator.lock.release()

    def answer(self, status: int, content: Answer) -> None:
        self.send(status, json.dumps(content).encode())

    def send(self, status: int, body: bytes, length: int | None = None, location: str | None = None) -> None:
        """Send a response; ``length`` is a wrong value for its header."""
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(body) if length is None else length))
        if location is not None:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


Fault = Callable[[_Handler, dict[str, Any]], object]


def _status(status: int, message: str) -> Fault:
    """Return a fault that executes nothing and answers with a status."""
    return lambda handler, request: handler.answer(status, answer(False, message) | {"id": request["id"]})


def _body(change: Callable[[Answer], bytes]) -> Fault:
    """Return a fault that executes the request and changes the answer."""
    return lambda handler, request: handler.send(200, change(handler.execute(request)[1]))


def _with_fields(**changes: Any) -> Fault:
    """Return a fault that replaces fields, and removes those whose new value is None."""

    removed = {name for name, value in changes.items() if value is None}
    return _body(lambda fields: json.dumps({k: v for k, v in (fields | changes).items() if k not in removed}).encode())


def _bytes(content: Callable[[FakeSimulator, bytes], bytes]) -> Fault:
    """Return a fault that sends bytes, made from the request's id, and closes the connection."""

    def fault(handler: _Handler, request: dict[str, Any]) -> None:
        handler.wfile.write(content(handler.server.simulator, request["id"].encode()))
        handler.close_connection = True

    return fault


def _drip(handler: _Handler, request: dict[str, Any]) -> None:
    simulator = handler.server.simulator
    for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 500000\r\n\r\n" + b" " * 500000:
        handler.wfile.write(bytes([byte]))
        if simulator.stopped.wait(simulator.drip_seconds):
            return


def _cut(change: Callable[[bytes], tuple[bytes, int]]) -> Fault:
    """Return a fault that executes the request and sends a body with a wrong length, both from ``change``."""

    def fault(handler: _Handler, request: dict[str, Any]) -> None:
        handler.send(200, *change(json.dumps(handler.execute(request)[1]).encode()))
        handler.close_connection = True

    return fault


def _huge(handler: _Handler, request: dict[str, Any]) -> None:
    """Send an endless body without a length."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while not handler.server.simulator.stopped.is_set():
        handler.wfile.write(b" " * (1 << 16))


FAULTS: dict[str, Fault] = {
    "busy": _status(429, "Busy"), "timeout": _status(408, "Timeout"),
    "error": _status(500, "Unknown error (Object reference not set to an instance of an object)"),
    "bad_json": _body(lambda fields: b'{"id": '), "not_utf8": _body(lambda fields: b'{"id": "\xff"}'),
    "deep": _body(lambda fields: b"[" * 100_000), "not_an_object": _body(lambda fields: b"[1]"),
    "wrong_id": _with_fields(id="another"), "no_success": _with_fields(success=None),
    "wrong_type": _with_fields(success="yes"), "no_value": _with_fields(value=None, message=None, message_list=None),
    "bad_graph": _with_fields(success=True, message='{"nodes": ['),
    "no_graph": _with_fields(success=True, message='{"nodes": {}, "edges": []}'),
    "hang": lambda handler, request: handler.server.simulator.stopped.wait(), "drip": _drip,
    "close": _bytes(lambda simulator, number: b""),
    "half": _cut(lambda text: (text[: len(text) // 2], len(text))), "short": _cut(lambda text: (text, len(text) - 1)),
    "huge": _huge, "announced": _cut(lambda text: (b"{}", 1 << 40)),
    "redirect": lambda handler, request: handler.send(302, b"", location=handler.server.simulator.url),
    "not_http": _bytes(lambda simulator, number: b"220 mail.example.org ESMTP\r\n"),
    "raw": _bytes(lambda simulator, number: simulator.raw.replace(b"ID", number)),
}  # fmt: skip
