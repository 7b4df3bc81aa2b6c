"""Simulated rosbridge: protocol v2 of rosbridge_suite over a websocket, without ROS.

It has topics between clients and the robot that a test simulates, services of both, and a ROS 2 action server. It lists
a message that rosbridge would refuse as a complaint; the fixture `robot` checks that there is none.
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


def _start(function: Callable[..., object], *arguments: Any) -> None:
    Thread(target=function, args=arguments, daemon=True).start()


class StandIn:
    """Rosbridge with a robot behind it. ``messages`` holds the published messages by topic."""

    def __init__(self) -> None:
        self.port = 0
        self.open = Event()  # set: new connections are accepted
        self.open.set()
        self.messages: dict[str, list[dict]] = defaultdict(list)
        self.complaints: list[str] = []
        self.actions: dict[str, Action] = {}
        self.services: dict[str, Callable[[dict], dict]] = {}
        self.listeners: dict[str, Callable[[dict], None]] = {}
        self.advertised: list[str] = []  # every advertisement of a service
        self._lock = RLock()
        self._clients: list[ServerConnection] = []
        self._subscribers: dict[str, list[ServerConnection]] = defaultdict(list)
        self._types: dict[str, str] = {}
        self._latched: dict[str, dict] = {}
        self._providers: dict[str, ServerConnection] = {}
        self._calls: dict[str, tuple[ServerConnection, str | None]] = {}
        self._goals: dict[str, Event] = {}
        self._responses: dict[str, dict] = {}
        self._number = count(1)

    # calls of a test --------------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait for a true value of ``condition``, evaluated under the lock, and return it."""
        values: list[Any] = []

        def check() -> Any:
            with self._lock:
                values.append(condition())
            return values[-1]

        until(check, lambda: f"{dict(self.messages)} {self.complaints}")
        return values[-1]

    def publish(self, topic: str, message: dict, latch: bool = False) -> None:
        with self._lock:
            if latch:
                self._latched[topic] = message
            subscribers = list(self._subscribers[topic])
        for client in subscribers:
            self._send(client, {"op": "publish", "topic": topic, "msg": message})

    def call(self, service: str, args: dict) -> dict:
        id = self.request(service, args)
        return self.until(lambda: self._responses.get(id))

    def request(self, service: str, args: dict) -> str:
        """Call a client's service without waiting for the response; return its id."""
        provider = self.until(lambda: self._providers.get(service))
        id = f"robot:{next(self._number)}"
        self._send(provider, {"op": "call_service", "id": id, "service": service, "args": args})
        return id

    def subscribed(self, *topics: str) -> None:
        """Wait for a subscriber to each topic."""
        self.until(lambda: all(self._subscribers[topic] for topic in topics))

    def cut(self) -> None:
        with self._lock:
            clients, self._clients = self._clients, []
        for client in clients:
            self._forget(client)
            with suppress(OSError):  # closed already
                client.socket.shutdown(SHUT_RDWR)

    # operations of the protocol ---------------------------------------------------------------------------------

    def admit(self, *_: object) -> None:
        assert self.open.wait(WAIT)

    def handle(self, client: ServerConnection) -> None:
        with self._lock:
            self._clients.append(client)
        with suppress(ConnectionClosed):
            for text in client:
                message = json.loads(text)
                getattr(self, f"_op_{message.get('op')}", self._op_unknown)(client, message)
        self._forget(client)

    def _op_unknown(self, client: ServerConnection, message: dict) -> None:
        self.complaints.append(f"unknown op {message}")

    def _op_advertise(self, client: ServerConnection, message: dict) -> None:
        kind = self._types.setdefault(message["topic"], message["type"])
        if kind != message["type"]:
            self.complaints.append(f"{message['topic']} is {kind}, not {message['type']}")

    def _op_unadvertise(self, client: ServerConnection, message: dict) -> None:
        pass

    def _op_publish(self, client: ServerConnection, message: dict) -> None:
        topic, content = message["topic"], message["msg"]
        if topic not in self._types:
            self.complaints.append(f"{topic} was not advertised")
        with self._lock:
            self.messages[topic].append(content)
        if topic in self.listeners:
            _start(self.listeners[topic], content)
        self.publish(topic, content, message.get("latch", False))

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
            self.advertised.append(message["service"])

    def _op_call_service(self, client: ServerConnection, message: dict) -> None:
        name = message["service"]
        if name in self.services:
            _start(self._serve, client, message)
        elif name in self._providers:
            id = f"call:{next(self._number)}"
            self._calls[id] = client, message.get("id")
            self._send(self._providers[name], message | {"id": id})
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
            caller, id = self._calls.pop(message["id"])
            self._send(caller, message | {"id": id})
        with self._lock:
            self._responses[message["id"]] = message["values"]

    def _op_send_action_goal(self, client: ServerConnection, message: dict) -> None:
        if not message.get("action_type"):
            self.complaints.append(f"no type: {message}")
        self._goals[message["id"]] = Event()
        _start(self._act, client, message)

    def _op_cancel_action_goal(self, client: ServerConnection, message: dict) -> None:
        if message["id"] in self._goals:
            self._goals[message["id"]].set()

    def _act(self, client: ServerConnection, message: dict) -> None:
        goal = {"id": message["id"], "action": message["action"]}

        def feedback(values: dict) -> None:
            if message.get("feedback"):
                self._send(client, {"op": "action_feedback", "values": values, **goal})

        result: dict[str, Any] = {"op": "action_result", "result": True}
        try:
            action = self.actions[message["action"]]
            result["status"], result["values"] = action(message["args"], feedback, self._goals[message["id"]])
        except Exception as error:
            result |= {"status": 0, "values": str(error), "result": False}
        self._send(client, result | goal)

    def _send(self, client: ServerConnection, message: dict) -> None:
        try:
            client.send(json.dumps(message))
        except ConnectionClosed:
            self._forget(client)

    def _forget(self, client: ServerConnection) -> None:
        with self._lock:
            for clients in self._subscribers.values():
                clients[:] = [subscriber for subscriber in clients if subscriber is not client]
            self._providers = {name: owner for name, owner in self._providers.items() if owner is not client}


@contextmanager
def stand_in(port: int = 0) -> Iterator[StandIn]:
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
