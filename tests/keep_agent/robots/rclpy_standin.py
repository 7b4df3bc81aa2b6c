"""Simulated rclpy: the parts that the ROS 2 node uses, with a log of the order of their calls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from functools import partialmethod
from threading import Event, Thread
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from keep_agent.robots.ros.messages import PACKAGE
from tests.waiting import PATIENCE, until

Callback = Callable[[Any], Any]


class Answer(Enum):
    REJECT = 1
    ACCEPT = 2


@dataclass
class Goal:
    """Goal handle of a server, with the result that its client receives."""

    request: Any
    server: ActionServer
    result: Future[Any] = field(default_factory=Future)
    status: str = "executing"
    is_cancel_requested: bool = False

    def execute(self) -> None:
        Thread(target=self._work, daemon=True).start()

    def publish_feedback(self, feedback: Any) -> None:
        self.server.touch("feedback")

    def end(self, status: str) -> None:
        self.status = status

    succeed = partialmethod(end, "succeeded")
    abort = partialmethod(end, "aborted")
    canceled = partialmethod(end, "canceled")

    def _work(self) -> None:
        try:
            result = self.server.execute(self)
            assert self.server.sends.wait(PATIENCE)
            self.server.touch(f"result {self.status}")
            self.result.set_result(result)
        except BaseException as error:
            self.result.set_exception(error)


class ActionServer:
    def __init__(
        self, node: Node, kind: Any, name: str, execute: Callback, *, goal_callback: Callback,
        handle_accepted_callback: Callback, cancel_callback: Callback, callback_group: Any,
    ) -> None:  # fmt: skip
        Node.server = self
        self.node, self.execute, self._alive = node, execute, True
        self.goals: list[Goal] = []  # accepted goals
        self.sends = Event()  # set: results are sent, which rclpy does some time after a goal's work has returned
        self.sends.set()
        self._admit, self._accepted, self._cancel = goal_callback, handle_accepted_callback, cancel_callback

    def touch(self, call: str) -> None:
        """Log a call. Raises RuntimeError, as rclpy does, after the server was destroyed."""
        if not self._alive:
            raise RuntimeError(f"RCLError: {call} of a server that was destroyed")
        self.node.log.append(call)

    def send(self, task: str) -> Goal | None:
        """Send a goal like a client; return None if it is rejected."""
        request = SimpleNamespace(task=task, description="")
        if self._admit(request) is Answer.REJECT:
            return None
        goal = Goal(request, self)
        self.goals.append(goal)
        self._accepted(goal)
        return goal

    def cancel(self, goal: Goal) -> None:
        assert self._cancel(goal) is Answer.ACCEPT
        goal.is_cancel_requested = True

    def destroy(self) -> None:
        self._alive = False
        self.sends.set()  # results are sent too late, after the end
        self.node.log.append("server destroyed")


def sleep(seconds: float) -> None:
    """Replace ``time.sleep`` by a wait until the latest server has sent its results."""
    Node.server.sends.set()
    until(lambda: all(goal.result.done() for goal in Node.server.goals))


class Node:
    latest: Node
    server: ActionServer  # action server of the latest node

    def __init__(self, name: str) -> None:
        self.log: list[str] = []
        Node.latest = self

    def create_publisher(self, *arguments: Any) -> Any:
        return SimpleNamespace(publish=lambda message: None)

    def create_subscription(self, *arguments: Any, **options: Any) -> None:
        """Accept a callback that no test calls."""

    create_service = create_subscription

    def destroy_node(self) -> None:
        self.log.append("node destroyed")


class Executor:
    """Executor that spins until it is shut down."""

    def __init__(self, num_threads: int) -> None:
        self._over = Event()

    def add_node(self, node: Node) -> None:
        self.node = node

    def spin(self) -> None:
        self._over.wait()

    def shutdown(self) -> None:
        self.node.log.append("executor shut down")
        self._over.set()


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace rclpy and the message packages until the end of the test."""
    message = SimpleNamespace
    parts: dict[str, dict[str, Any]] = {
        "rclpy": {"init": lambda **options: None, "try_shutdown": lambda: Node.latest.log.append("context shut down")},
        "rclpy.action": {"ActionServer": ActionServer, "GoalResponse": Answer, "CancelResponse": Answer},
        "rclpy.qos": {"QoSProfile": message, "DurabilityPolicy": SimpleNamespace(TRANSIENT_LOCAL=1)},
        "rclpy.callback_groups": {"ReentrantCallbackGroup": message},
        "rclpy.node": {"Node": Node},
        "rclpy.executors": {"MultiThreadedExecutor": Executor},
        "rclpy.signals": {"SignalHandlerOptions": SimpleNamespace(NO=0)},
        "std_msgs.msg": {"String": message},
        f"{PACKAGE}.srv": {"Plan": message, "Report": message},
        f"{PACKAGE}.action": {"Task": SimpleNamespace(Feedback=message, Result=message)},
    }
    for name, values in parts.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
