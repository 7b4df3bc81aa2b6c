"""Connection to a robot's rosbridge, for ROS 1 and ROS 2, through roslibpy: `pip install 'keep-agent[ros]'`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from types import ModuleType
from typing import Any, Literal

from keep_agent.errors import ConfigError
from keep_agent.robots.executor import ConnectionLost, NotInstalled
from keep_agent.robots.ros.messages import Listener, ignore_invalid

Distribution = Literal["ros1", "ros2"]
RETRY = 5.0  # maximum seconds between two attempts to reconnect; roslibpy's default is an hour


def roslibpy() -> ModuleType:
    """Import roslibpy. Raises NotInstalled."""
    try:
        import roslibpy as library
    except ImportError as error:
        raise NotInstalled("a rosbridge needs roslibpy 2.1 or newer: pip install 'keep-agent[ros]'") from error
    return library


class Bridge(AbstractContextManager["Bridge"]):
    """Connection to a rosbridge. When it breaks, roslibpy reconnects and restores advertisements and subscriptions.

    Without a connection nothing is sent: roslibpy would send messages after the reconnection, moving the robot late.
    roslibpy runs on asyncio here. Twisted, the alternative, can start only once per process and outlives `main`.
    """

    def __init__(self, host: str = "localhost", port: int = 9090, timeout: float = 10.0, secure: bool = False) -> None:
        """Connect; with TLS if ``secure``. Raises ConnectionLost if there is no answer within ``timeout`` seconds."""
        self.library = roslibpy()
        self.where = f"{host}:{port}"
        self._listeners: dict[str, list[Listener]] = {}  # by rosbridge operation
        self._closed = False
        try:
            self.ros = self.library.Ros(host, port, is_secure=secure, transport="asyncio")
        except TypeError as error:
            raise NotInstalled("this roslibpy is older than 2.1: pip install -U 'keep-agent[ros]'") from error
        self.ros.factory.maxDelay = RETRY
        self.ros.on("ready", self._attach)
        try:
            self.ros.run(timeout)
        except TimeoutError as error:
            self.close()
            raise ConnectionLost(
                f"no rosbridge answers at {self.where} within {timeout:g} s: start rosbridge_server there, or name "
                "another host and port"
            ) from error

    @property
    def connected(self) -> bool:
        return not self._closed and bool(self.ros.is_connected)

    def check(self) -> None:
        """Raises ConnectionLost unless there is a connection."""
        if not self.connected:
            raise ConnectionLost(f"the connection to the rosbridge at {self.where} is lost: check that the robot is on")

    def send(self, op: str, **fields: Any) -> None:
        """Send an operation of the rosbridge protocol. Raises ConnectionLost."""
        self.check()
        self.ros.send_on_ready(self.library.Message({"op": op, **fields}))

    def on_lost(self, function: Callable[[], None]) -> None:
        """Call ``function``, on a thread of roslibpy, whenever the connection breaks. The function must not block."""
        self.ros.on("close", lambda protocol: function())

    def publisher(self, name: str, kind: str, latch: bool = False) -> Any:
        """Advertise a topic now and, without roslibpy's delay of a second, after every reconnection."""
        topic = self.library.Topic(self.ros, name, kind, latch=latch)
        topic.advertise()
        self.ros.on("ready", lambda protocol: self.send("advertise", topic=name, type=kind, latch=latch))
        return topic

    def subscribe(self, name: str, kind: str, listener: Listener) -> None:
        """Subscribe to a topic. Messages for which ``listener`` raises DataError are logged and ignored."""
        self.library.Topic(self.ros, name, kind).subscribe(ignore_invalid(name, listener))

    def on_operation(self, operation: str, listener: Listener) -> None:
        """Pass a rosbridge operation's messages to ``listener``: roslibpy's own handler fails on unexpected fields."""
        self._listeners.setdefault(operation, []).append(ignore_invalid(operation, listener))
        self.ros.factory.on_ready(self._attach)

    def on_ready(self, function: Callable[[], None]) -> None:
        """Call ``function`` now and after every reconnection."""
        self.ros.on("ready", lambda protocol: function())
        function()

    def close(self) -> None:
        """Close the connection. Threads of roslibpy end with the process."""
        if self._closed:
            return
        self._closed = True
        self.ros.factory.maxRetries = 0  # roslibpy has no public call that stops reconnecting
        with suppress(Exception):  # the connection may be closed already
            self.ros.close(timeout=2)

    def __exit__(self, *error: object) -> None:
        self.close()

    def _attach(self, protocol: Any) -> None:
        """Set the message handlers of a new connection, by a private field: roslibpy has no public call for this."""
        for operation in self._listeners:
            protocol._message_handlers[operation] = partial(self._handle, operation)

    def _handle(self, operation: str, message: Any) -> None:
        for listener in self._listeners[operation]:
            listener(message)


def ros1_time() -> dict[str, int]:
    """Return the current time as the fields of a ROS 1 time."""
    seconds = time.time()
    return {"secs": int(seconds), "nsecs": int(seconds % 1 * 1e9)}


def string_type(distribution: Distribution) -> str:
    return type_name("std_msgs", "msg", "String", distribution)


def type_name(package: str, kind: str, name: str, distribution: Distribution) -> str:
    """Return a message type's name in a ROS version: "std_msgs/String", or "std_msgs/msg/String" in ROS 2."""
    if distribution not in ("ros1", "ros2"):
        raise ConfigError(f"distribution={distribution!r} is unknown; use ros1 or ros2")
    return f"{package}/{name}" if distribution == "ros1" else f"{package}/{kind}/{name}"
