"""A rosbridge without ROS: protocol v2 over a real websocket, as rosbridge_suite documents it.

Topics between clients and the robot that a test plays, services of clients and of the robot, and a ROS 2 action server.
What a bridge would refuse is noted in ``complaints``; tests look that there is none.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from socket import SHUT_RDWR
from threading import Event, RLock, Thread
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection

from tests.sockets import serve
from tests.waiting import PATIENCE, until

SUCCEEDED, CANCELED, ABORTED = 4, 5, 6
WAIT = PATIENCE
Action = Callable[[dict, Callable[[dict], None], Event], tuple[int, dict]]


class StandIn:
    """``heard`` keeps what was published, by topic; `until` waits for something."""

    def __init__(self) -> None:
        self.port = 0
        self.open = Event()  # for new connections; the others stay
        self.open.set()
        self.heard: dict[str, list[dict]] = defaultdict(list)
        self.complaints: list[str] = []
        self.actions: dict[str, Action] = {}
        self.services: dict[str, Callable[[dict], dict]] = {}
        self.listeners: dict[str, Callable[[dict], None]] = {}
        self._lock = RLock()
        self._clients: list[ServerConnection] = []
        self._subscribers: dict[str, list[ServerConnection]] = defaultdict(list)
        self._types: dict[str, str] = {}
        self._latched: dict[str, dict] = {}
        self._providers: dict[str, ServerConnection] = {}
        self.offered: list[str] = []  # services, as often as they were advertised
        self._calls: dict[str, tuple[ServerConnection, str | None]] = {}
        self._goals: dict[str, Event] = {}
        self._answers: dict[str, dict] = {}
        self._number = count(1)

    # what a test does -------------------------------------------------------------------------------------------

    def until(self, found: Callable[[], Any]) -> Any:
        """Asked again and again: some of what is waited for, as that a server closes, nobody tells the robot."""
        answer: Any = None

        def asked() -> Any:
            nonlocal answer
            with self._lock:
                answer = found()
            return answer

        until(asked, lambda: f"{dict(self.heard)} {self.complaints}")
        return answer

    def publish(self, topic: str, message: dict, latch: bool = False) -> None:
        """As a node of the robot."""
        with self._lock:
            if latch:
                self._latched[topic] = message
            receivers = list(self._subscribers[topic])
        for client in receivers:
            self._send(client, {"op": "publish", "topic": topic, "msg": message})

    def call(self, service: str, args: dict) -> dict:
        """A service that a client offers, called by a node of the robot."""
        name = self.request(service, args)
        return self.until(lambda: self._answers.get(name))

    def request(self, service: str, args: dict) -> str:
        """The same without waiting for the answer, whose name is returned."""
        provider = self.until(lambda: self._providers.get(service))
        name = f"robot:{next(self._number)}"
        self._send(provider, {"op": "call_service", "id": name, "service": service, "args": args})
        return name

    def subscribed(self, *topics: str) -> None:
        self.until(lambda: all(self._subscribers[topic] for topic in topics))

    def cut(self) -> None:
        """Pull the cable of everybody."""
        with self._lock:
            clients, self._clients = self._clients, []
        for client in clients:
            self._forget(client)
            with suppress(OSError):  # gone already
                client.socket.shutdown(SHUT_RDWR)

    def admit(self, *_: object) -> None:
        """Let a client in as soon as it is `open`."""
        assert self.open.wait(WAIT)

    # what a bridge does -----------------------------------------------------------------------------------------

    def handle(self, client: ServerConnection) -> None:
        with self._lock:
            self._clients.append(client)
        try:
            for text in client:
                self._take(client, json.loads(text))
        except ConnectionClosed:
            pass
        finally:
            self._forget(client)

    def _take(self, client: ServerConnection, message: dict) -> None:
        handler = getattr(self, f"_op_{message.get('op')}", None)
        if handler is None:
            self._complain(f"unknown op {message}")
        else:
            handler(client, message)

    def _op_advertise(self, client: ServerConnection, message: dict) -> None:
        known = self._types.setdefault(message["topic"], message["type"])
        if known != message["type"]:
            self._complain(f"{message['topic']} is {known}, not {message['type']}")

    def _op_unadvertise(self, client: ServerConnection, message: dict) -> None:
        pass

    def _op_publish(self, client: ServerConnection, message: dict) -> None:
        topic = message["topic"]
        if topic not in self._types:
            self._complain(f"{topic} was not advertised")
        with self._lock:
            self.heard[topic].append(message["msg"])
        if topic in self.listeners:
            Thread(target=self.listeners[topic], args=(message["msg"],), daemon=True).start()
        self.publish(topic, message["msg"], message.get("latch", False))

    def _op_subscribe(self, client: ServerConnection, message: dict) -> None:
        topic = message["topic"]
        with self._lock:
            self._subscribers[topic].append(client)
            latched = self._latched.get(topic)
        if latched is not None:
            self._send(client, {"op": "publish", "topic": topic, "msg": latched})

    def _op_unsubscribe(self, client: ServerConnection, message: dict) -> None:
        with self._lock:
            self._subscribers[message["topic"]].remove(client)

    def _op_advertise_service(self, client: ServerConnection, message: dict) -> None:
        with self._lock:
            self._providers[message["service"]] = client
            self.offered.append(message["service"])

    def _op_call_service(self, client: ServerConnection, message: dict) -> None:
        name = message["service"]
        if name in self.services:
            Thread(target=self._serve, args=(client, message), daemon=True).start()
        elif name in self._providers:
            inner = f"call:{next(self._number)}"
            self._calls[inner] = client, message.get("id")
            self._send(self._providers[name], message | {"id": inner})
        else:
            self._respond(client, message, f"Service {name} does not exist", False)

    def _serve(self, client: ServerConnection, message: dict) -> None:
        try:
            values = self.services[message["service"]](message.get("args", {}))
        except Exception as error:
            self._respond(client, message, str(error), False)
        else:
            self._respond(client, message, values, True)

    def _respond(self, client: ServerConnection, message: dict, values: Any, result: bool) -> None:
        response = {"op": "service_response", "service": message["service"], "values": values, "result": result}
        self._send(client, response | ({"id": message["id"]} if "id" in message else {}))

    def _op_service_response(self, client: ServerConnection, message: dict) -> None:
        if message["id"] in self._calls:
            caller, name = self._calls.pop(message["id"])
            self._send(caller, message | {"id": name})
        with self._lock:
            self._answers[message["id"]] = message["values"]

    def _op_send_action_goal(self, client: ServerConnection, message: dict) -> None:
        if not message.get("action_type"):
            self._complain(f"no type: {message}")
        self._goals[message["id"]] = Event()
        Thread(target=self._act, args=(client, message), daemon=True).start()

    def _op_cancel_action_goal(self, client: ServerConnection, message: dict) -> None:
        if message["id"] in self._goals:
            self._goals[message["id"]].set()

    def _act(self, client: ServerConnection, message: dict) -> None:
        name, action = message["id"], message["action"]
        told = {"id": name, "action": action}

        def feedback(values: dict) -> None:
            if message.get("feedback"):
                self._send(client, {"op": "action_feedback", "values": values, **told})

        try:
            status, values = self.actions[action](message["args"], feedback, self._goals[name])
        except Exception as error:
            self._send(client, {"op": "action_result", "values": str(error), "status": 0, "result": False, **told})
        else:
            self._send(client, {"op": "action_result", "values": values, "status": status, "result": True, **told})

    def _send(self, client: ServerConnection, message: dict) -> None:
        try:
            client.send(json.dumps(message))
        except ConnectionClosed:
            self._forget(client)

    def _forget(self, client: ServerConnection) -> None:
        with self._lock:
            for subscribers in self._subscribers.values():
                subscribers[:] = [other for other in subscribers if other is not client]
            self._providers = {name: other for name, other in self._providers.items() if other is not client}

    def _complain(self, text: str) -> None:
        with self._lock:
            self.complaints.append(text)


@contextmanager
def stand_in(port: int = 0) -> Iterator[StandIn]:
    """A bridge on a free port, as long as the block lasts."""
    bridge = StandIn()
    with serve(bridge.handle, "127.0.0.1", port, process_request=bridge.admit) as server:
        bridge.port = server.socket.getsockname()[1]
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield bridge
        finally:
            server.shutdown()
            bridge.cut()
            thread.join(WAIT)
