"""A connection to a robot's rosbridge, for ROS 1 and ROS 2, by roslibpy: `pip install 'keep-agent[ros]'`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Lock
from types import ModuleType
from typing import Any, Literal

from keep_agent.errors import ConfigError
from keep_agent.robots.executor import ConnectionLost, NotInstalled
from keep_agent.robots.ros.messages import Listener, listening

Distribution = Literal["ros1", "ros2"]
OnLost = Callable[[], None]
RETRY = 5.0  # seconds at most between two tries to connect again; the library would wait up to an hour


def roslibpy() -> ModuleType:
    """The library. Raises NotInstalled."""
    try:
        import roslibpy as library
    except ImportError as error:
        raise NotInstalled("a rosbridge needs roslibpy 2.1 or newer: pip install 'keep-agent[ros]'") from error
    return library


class Bridge:
    """One connection. After a break roslibpy connects again by itself, with what was advertised and subscribed.

    Nothing is sent while there is no connection: roslibpy would keep it, and a robot would move when nobody expects it.
    Its asyncio transport is used: a Twisted reactor runs once per process, and its pool of threads outlives `main`.
    """

    def __init__(self, host: str = "localhost", port: int = 9090, timeout: float = 10.0, secure: bool = False) -> None:
        """Raises ConnectionLost if nobody answers within ``timeout`` seconds."""
        self.library = roslibpy()
        self.where = f"{host}:{port}"
        self._lost: list[OnLost] = []
        self._hearing: dict[str, list[Listener]] = {}  # by operation
        self._lock = Lock()
        self._closed = False
        try:
            self.ros = self.library.Ros(host, port, is_secure=secure, transport="asyncio")
        except TypeError as error:
            raise NotInstalled("this roslibpy is older than 2.1: pip install -U 'keep-agent[ros]'") from error
        self.ros.factory.maxDelay = RETRY
        self.ros.on("close", self._on_close)
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
            raise ConnectionLost(f"the connection to the rosbridge at {self.where} is gone: is the robot still on?")

    def send(self, op: str, **fields: Any) -> None:
        """An operation of the rosbridge protocol. Raises ConnectionLost."""
        self.check()
        self.ros.send_on_ready(self.library.Message({"op": op, **fields}))

    def on_lost(self, function: OnLost) -> None:
        """Call this, on a thread of the library's, whenever the connection breaks. It must not block."""
        with self._lock:
            self._lost.append(function)

    def publisher(self, name: str, kind: str, latch: bool = False) -> Any:
        """A topic of ours, advertised again as soon as the connection is back: the library takes a second for that."""
        topic = self.library.Topic(self.ros, name, kind, latch=latch)
        topic.advertise()
        self.ros.on("ready", lambda protocol: self.send("advertise", topic=name, type=kind, latch=latch))
        return topic

    def subscribe(self, name: str, kind: str, listener: Listener) -> None:
        """Hear a topic. Messages that ``listener`` refuses with a DataError are logged and ignored."""
        self.library.Topic(self.ros, name, kind).subscribe(listening(name, listener))

    def hear(self, operation: str, listener: Listener) -> None:
        """Hear an operation of the rosbridge protocol in the library's place, which trips over fields that it does not
        expect, and then leaves whoever waits waiting.
        """
        self._hearing.setdefault(operation, []).append(listening(operation, listener))
        self.ros.factory.on_ready(self._attach)

    def on_ready(self, function: Callable[[], None]) -> None:
        """Call this now, and whenever there is a connection again."""
        self.ros.on("ready", lambda protocol: function())
        function()

    def close(self) -> None:
        """Let go of the connection. Threads of the library end with the process."""
        if self._closed:
            return
        self._closed = True
        self._stop_trying()
        with suppress(Exception):  # whoever closes does not care that it was closed already
            self.ros.close(timeout=2)

    def __enter__(self) -> Bridge:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _on_close(self, protocol: object) -> None:
        with self._lock:
            lost = list(self._lost)
        for function in lost:
            function()

    def _attach(self, protocol: Any) -> None:
        """To every new connection. The library has no public word for another handler than its own."""
        for operation in self._hearing:
            protocol._message_handlers[operation] = partial(self._heard, operation)

    def _heard(self, operation: str, message: Any) -> None:
        for listener in self._hearing[operation]:
            listener(message)

    def _stop_trying(self) -> None:
        """The library's transport has no public word for it: a factory without tries left gives up."""
        self.ros.factory.maxRetries = 0


def string_type(distribution: Distribution) -> str:
    return typed("std_msgs", "msg", "String", distribution)


def typed(package: str, kind: str, name: str, distribution: Distribution) -> str:
    """A type as the distribution writes it: "std_msgs/String", or "std_msgs/msg/String" in ROS 2."""
    if distribution not in ("ros1", "ros2"):
        raise ConfigError(f"distribution={distribution!r} is unknown; use ros1 or ros2")
    return f"{package}/{name}" if distribution == "ros1" else f"{package}/{kind}/{name}"
