"""Actionlib server over rosbridge topics, for one goal at a time; a new goal preempts the old one.

It replaces roslibpy's `SimpleActionServer`, which can neither abort a goal nor send a result for a cancelled one, and
cannot be closed.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Condition, Thread
from typing import Any

from keep_agent.errors import DataError
from keep_agent.robots.ros.messages import field_at, text_of
from keep_agent.robots.rosbridge.connection import Bridge, ros1_time

log = logging.getLogger(__name__)
ACTIVE, PREEMPTED, SUCCEEDED, ABORTED, REJECTED = 1, 2, 3, 4, 5  # values of actionlib_msgs/GoalStatus
MAX_RECENT = 8  # number of ended goals in a status message: a client treats a goal without a status as lost
HEARTBEAT_SECONDS = 0.2  # between status messages; actionlib clients wait for a status before they send a goal
REPLACED = "another goal replaced it"
CLOSED = "the server has ended; send the goal again when it is back"
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GoalEnd:
    status: int
    text: str
    result: Message


# arguments: goal, function that sends feedback, and function that returns whether the goal was cancelled
GoalHandler = Callable[[Message, Callable[[Message], None], Callable[[], bool]], GoalEnd]


class BridgeActionServer:
    """Action server. One thread calls ``handler`` for each goal; another calls ``cancel_handler`` to stop that call."""

    def __init__(
        self, bridge: Bridge, name: str, kind: str, handler: GoalHandler, cancel_handler: Callable[[], object]
    ) -> None:
        self.bridge, self._handler, self._cancel_handler = bridge, handler, cancel_handler
        self._feedback = bridge.publisher(f"{name}/feedback", f"{kind}Feedback")
        self._result = bridge.publisher(f"{name}/result", f"{kind}Result")
        self._status = bridge.publisher(f"{name}/status", "actionlib_msgs/GoalStatusArray")
        self._changed = Condition()
        self._next: Message | None = None
        self._current: Message | None = None
        self._recent_statuses: deque[Message] = deque(maxlen=MAX_RECENT)  # statuses of ended goals
        self._unsent_results: deque[Message] = deque(maxlen=MAX_RECENT)  # results that wait for a connection
        self._cancel = self._closed = False
        bridge.on_ready(self._send_results)
        bridge.subscribe(f"{name}/goal", f"{kind}Goal", self._on_goal)
        bridge.subscribe(f"{name}/cancel", "actionlib_msgs/GoalID", self._on_cancel)
        self._threads = [Thread(target=target, daemon=True) for target in (self._serve, self._send_heartbeats)]
        for thread in self._threads:
            thread.start()

    def close(self, seconds: float) -> None:
        """Reject waiting and later goals; wait up to ``seconds`` for the current goal, which the caller has stopped."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(seconds)

    def _on_goal(self, message: Any) -> None:
        content, name = field_at(message, "goal"), field_at(message, "goal_id", "id")
        if not isinstance(content, Mapping) or not isinstance(name, str):
            raise DataError(f"{message!r:.80} has no goal, or no goal_id; send a message of the action's type")
        with self._changed:
            if self._closed:
                goal, end = message, _without_success(REJECTED, CLOSED)
            else:
                goal, end = self._next, _without_success(PREEMPTED, REPLACED)
                self._next = message
                self._stop_current(self._current is not None)
                self._changed.notify_all()
        if goal is not None:
            self._end(goal, end)

    def _on_cancel(self, message: Any) -> None:
        """Cancel the goal with the message's id; without an id, all goals. The message's time stamp is ignored."""
        name = text_of(message, "id")
        with self._changed:
            goal = self._next if self._next is not None and _matches(self._next, name) else None
            if goal is not None:
                self._next = None
            self._stop_current(self._current is not None and _matches(self._current, name))
        if goal is not None:
            self._end(goal, GoalEnd(PREEMPTED, "cancelled", {"success": False, "report": "cancelled before it began"}))

    def _stop_current(self, applies: bool) -> None:
        """Cancel the current goal if ``applies``. The caller holds the lock, so that no other goal becomes current."""
        if applies:
            self._cancel = True
            self._cancel_handler()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next is not None or self._closed)
                goal, self._next = self._next, None
                if self._closed:
                    break
                self._current, self._cancel = goal, False
            self._end(goal, self._run(goal))
            with self._changed:
                self._current = None
        if goal is not None:
            self._end(goal, _without_success(REJECTED, CLOSED))

    def _run(self, goal: Message) -> GoalEnd:
        try:
            return self._handler(goal["goal"], partial(self._publish_feedback, goal), lambda: self._cancel)
        except Exception as error:  # the client waits for a result
            log.exception("the work of a goal failed")
            return GoalEnd(ABORTED, type(error).__name__, {"success": False, "report": str(error)})

    def _send_heartbeats(self) -> None:
        while not self._closed:
            with self._changed:
                self._publish_status()
                self._changed.wait_for(lambda: self._closed, HEARTBEAT_SECONDS)

    def _publish_feedback(self, goal: Message, feedback: Message) -> None:
        self._publish(self._feedback, {"status": _status(goal, ACTIVE), "feedback": dict(feedback)})

    def _end(self, goal: Message, end: GoalEnd) -> None:
        status = _status(goal, end.status, end.text)
        with self._changed:
            self._recent_statuses.append(status)
            self._publish_status()
            self._unsent_results.append({"status": status, "result": dict(end.result)})
            self._send_results()

    def _send_results(self) -> None:
        """Send unsent results; also called after a reconnection, because a client waits until a result arrives."""
        with self._changed:
            while self._unsent_results and self._publish(self._result, self._unsent_results[0]):
                self._unsent_results.popleft()

    def _publish_status(self) -> None:
        """Publish the statuses of the last goals. The caller holds the lock, so that status messages stay in order."""
        known = [*self._recent_statuses]
        if self._current is not None and self._current["goal_id"] not in [status["goal_id"] for status in known]:
            known.append(_status(self._current, ACTIVE))
        self._publish(self._status, {"status_list": known})

    def _publish(self, topic: Any, message: Message) -> bool:
        """Publish a message; do nothing and return False without a connection: roslibpy would send the message late."""
        if not self.bridge.connected:
            return False
        topic.publish({"header": {"stamp": ros1_time(), "frame_id": ""}, **message})
        return True


def _without_success(status: int, why: str) -> GoalEnd:
    return GoalEnd(status, why, {"success": False, "report": why})


def _matches(goal: Message, name: str) -> bool:
    return name in ("", goal["goal_id"]["id"])


def _status(goal: Message, status: int, text: str = "") -> dict[str, Any]:
    return {"goal_id": goal["goal_id"], "status": status, "text": text}
