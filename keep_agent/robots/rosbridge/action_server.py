"""An actionlib server over a rosbridge's topics, one goal at a time; a new goal takes the place of the old.

The library's own has no word for a task that failed, no result for one that was cancelled, and goes on talking when it
is closed.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Condition, Thread
from typing import Any

from keep_agent.errors import DataError
from keep_agent.robots.ros.messages import member, text_of
from keep_agent.robots.rosbridge.connection import Bridge

log = logging.getLogger(__name__)
ACTIVE, PREEMPTED, SUCCEEDED, ABORTED, REJECTED = 1, 2, 3, 4, 5  # of actionlib_msgs/GoalStatus
KEPT = 8  # ended goals in a heartbeat: a client that misses its goal there takes it for lost
HEARTBEAT = 0.2  # seconds; actionlib clients wait for a status before they send
REPLACED = "another goal took its place"
CLOSED = "the server has ended; send the goal again when it is back"
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class End:
    status: int
    text: str
    result: Message


Work = Callable[[Message, Callable[[Message], None], Callable[[], bool]], End]  # goal, feedback, was it cancelled?


class BridgeActionServer:
    """``work`` runs on a thread of this server; ``cancelled`` is called, on another, when it has to end early."""

    def __init__(self, bridge: Bridge, name: str, kind: str, work: Work, cancelled: Callable[[], None]) -> None:
        self.bridge, self._work, self._cancelled = bridge, work, cancelled
        self._feedback = bridge.publisher(f"{name}/feedback", f"{kind}Feedback")
        self._result = bridge.publisher(f"{name}/result", f"{kind}Result")
        self._status = bridge.publisher(f"{name}/status", "actionlib_msgs/GoalStatusArray")
        self._news = Condition()
        self._next: Message | None = None
        self._current: Message | None = None
        self._ended: deque[Message] = deque(maxlen=KEPT)
        self._unsent: deque[Message] = deque(maxlen=KEPT)  # results, while there is no connection
        self._cancel = self._closed = False
        bridge.on_ready(self._send_results)
        bridge.subscribe(f"{name}/goal", f"{kind}Goal", self._on_goal)
        bridge.subscribe(f"{name}/cancel", "actionlib_msgs/GoalID", self._on_cancel)
        self._threads = [Thread(target=target, daemon=True) for target in (self._serve, self._beat)]
        for thread in self._threads:
            thread.start()

    def close(self, seconds: float) -> None:
        """No goal is taken any more; wait so long for the one that is on, which the caller has told to stop. Who waits
        or comes later is told.
        """
        with self._news:
            self._closed = True
            self._news.notify_all()
        for thread in self._threads:
            thread.join(seconds)

    def _on_goal(self, message: Any) -> None:
        goal, name = member(message, "goal"), member(message, "goal_id", "id")
        if not isinstance(goal, Mapping) or not isinstance(name, str):
            raise DataError(f"{message!r:.80} has no goal, or no goal_id; send a message of the action's type")
        with self._news:
            if self._closed:
                left, end = message, _without_success(REJECTED, CLOSED)
            else:
                left, end = self._next, _without_success(PREEMPTED, REPLACED)
                self._next = message
                self._end_current(self._current is not None)
                self._news.notify_all()
        if left is not None:
            self._end(left, end)

    def _on_cancel(self, message: Any) -> None:
        """By its id, or all of them; a stamp that says "all before" means all: there are two at most."""
        wanted = text_of(message, "id")
        with self._news:
            waiting = self._next if self._next is not None and _is(self._next, wanted) else None
            if waiting is not None:
                self._next = None
            self._end_current(self._current is not None and _is(self._current, wanted))
        if waiting is not None:
            self._end(waiting, End(PREEMPTED, "cancelled", {"success": False, "report": "cancelled before it began"}))

    def _end_current(self, wanted: bool) -> None:
        """Under the lock: so it cannot be the next goal that is ended."""
        if wanted:
            self._cancel = True
            self._cancelled()

    def _serve(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._next is not None or self._closed)
                goal, self._next = self._next, None
                if self._closed:
                    break
                self._current, self._cancel = goal, False
            self._end(goal, self._done(goal))
            with self._news:
                self._current = None
        if goal is not None:
            self._end(goal, _without_success(REJECTED, CLOSED))

    def _done(self, goal: Message) -> End:
        try:
            return self._work(goal["goal"], partial(self._feed, goal), lambda: self._cancel)
        except Exception as error:  # whoever sent the goal waits for a result
            log.exception("a goal broke the server's work")
            return End(ABORTED, type(error).__name__, {"success": False, "report": str(error)})

    def _beat(self) -> None:
        while not self._closed:
            with self._news:
                self._say_status()
                self._news.wait_for(lambda: self._closed, HEARTBEAT)

    def _feed(self, goal: Message, feedback: Message) -> None:
        self._say(self._feedback, {"status": _status(goal, ACTIVE), "feedback": dict(feedback)})

    def _end(self, goal: Message, end: End) -> None:
        status = _status(goal, end.status, end.text)
        with self._news:
            self._ended.append(status)
            self._say_status()
            self._unsent.append({"status": status, "result": dict(end.result)})
            self._send_results()

    def _send_results(self) -> None:
        """Also what fell due while the connection was gone: a client takes no status for the end, but the result."""
        with self._news:
            while self._unsent and self._say(self._result, self._unsent[0]):
                self._unsent.popleft()

    def _say_status(self) -> None:
        """Under the lock: no heartbeat is older than the one before."""
        known = [*self._ended]
        if self._current is not None and self._current["goal_id"] not in [status["goal_id"] for status in known]:
            known.append(_status(self._current, ACTIVE))
        self._say(self._status, {"status_list": known})

    def _say(self, topic: Any, message: Message) -> bool:
        """Whether there was a connection: the library would keep it until nobody wants to hear it any more."""
        if not self.bridge.connected:
            return False
        now = time.time()
        stamp = {"secs": int(now), "nsecs": int(now % 1 * 1e9)}
        topic.publish({"header": {"stamp": stamp, "frame_id": ""}, **message})
        return True


def _without_success(status: int, why: str) -> End:
    return End(status, why, {"success": False, "report": why})


def _is(goal: Message, wanted: str) -> bool:
    return wanted in ("", goal["goal_id"]["id"])


def _status(goal: Message, status: int, text: str = "") -> dict[str, Any]:
    return {"goal_id": goal["goal_id"], "status": status, "text": text}
