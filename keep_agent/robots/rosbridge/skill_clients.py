"""Skill clients: they send a skill to a robot over a rosbridge, as a ROS 2 action, ROS 1 action or service."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from secrets import token_hex
from threading import Event, Timer
from typing import Any, Literal, Protocol

from envs.outcome import Outcome, failed
from keep_agent.errors import DataError
from keep_agent.robots.executor import RobotError, SkillLost
from keep_agent.robots.ros.messages import Listener, field_at, flag_of, text_of
from keep_agent.robots.rosbridge.connection import Bridge, ros1_time

log = logging.getLogger(__name__)
CANCEL_TIMEOUT = 2.0  # seconds to wait for the response of the cancel service
SkillProtocol = Literal["ros2_action", "ros1_action", "service"]
SUCCEEDED, SUCCEEDED_ROS1 = 4, 3  # in action_msgs/GoalStatus of ROS 2, and in actionlib_msgs/GoalStatus of ROS 1
NO_SUCCESS = "succeeded, but its success field is false"
ROS2_STATUSES = dict(enumerate(("unknown", "accepted", "executing", "canceling", NO_SUCCESS, "cancelled", "aborted")))
ROS1_ENDS = {2: "preempted", SUCCEEDED_ROS1: NO_SUCCESS, 4: "aborted", 5: "rejected", 8: "recalled", 9: "lost"}


@dataclass(frozen=True, slots=True)
class Fields:
    """Field names in a robot's messages. The defaults are those of this project's action.

    :param ok: field with the skill's success. None: the type has no such field, like std_srvs/Empty or the result
        of move_base. A service then succeeds if it answers, an action if its status is "succeeded"
    """

    skill: str = "task"  # in an action's goal or a service's request
    ok: str | None = "success"  # in an action's result or a service's response
    message: str = "report"
    feedback: str = "current_status"

    def goal(self, skill: str) -> dict[str, str]:
        return {self.skill: skill}

    def outcome(self, values: Any, ended_well: bool, otherwise: str) -> Outcome:
        """Return the outcome of a result or response with the content ``values``; a missing success field is a failure.

        :param ended_well: whether the protocol reports success; only then is the success field read
        :param otherwise: message of a failure for which the robot gives none
        """
        try:
            ok = ended_well and (self.ok is None or flag_of(values, self.ok))
        except DataError as error:
            return failed(f"the robot does not report success or failure: {error}, or name the field: Fields(ok=...)")
        fields = values if isinstance(values, Mapping) else {self.message: values or None}
        message = text_of(fields, self.message)
        return Outcome(True, message) if ok else failed(message or otherwise)


TRIGGER_FIELDS = Fields(message="message")  # the response of std_srvs/Trigger


@dataclass(eq=False)
class PendingSkill:
    """A running skill. Its first result or error counts; later ones are ignored."""

    skill: str
    feedback: Callable[[str], None]
    future: Future[Outcome] = field(default_factory=Future)
    _timer: Timer | None = None

    def start_timer(self, seconds: float) -> None:
        """Fail the cancelled skill with `SkillLost` after ``seconds`` without a result."""
        if self._timer is None:
            text = f"{self.skill!r} was cancelled {seconds:g} s ago and has sent no result since"
            self._timer = Timer(seconds, self.fail, (SkillLost(f"{text}: the robot may still be moving"),))
            self._timer.daemon = True
            self._timer.start()

    def stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def settle(self, outcome: Outcome) -> None:
        with suppress(InvalidStateError):
            self.future.set_result(outcome)

    def fail(self, error: Exception) -> None:
        with suppress(InvalidStateError):
            self.future.set_exception(error)


class SkillClient(Protocol):
    def begin(self, pending: PendingSkill) -> None:
        """Send a skill. Another thread puts the outcome into ``pending`` when it arrives."""

    def cancel(self) -> None:
        """Cancel the last skill that was sent. May take some seconds."""


class ActionClient:
    """Client of an action with one goal at a time. ``path``: field path of the goal id in received messages."""

    def __init__(self, bridge: Bridge, fields: Fields, *path: str) -> None:
        self.bridge, self.fields, self._path = bridge, fields, path
        self._last: tuple[str, PendingSkill | None] = "", None

    @property
    def id(self) -> str:
        """Id of the last goal; "" before the first."""
        return self._last[0]

    def new_id(self, pending: PendingSkill) -> str:
        self._last = f"keep_agent-{token_hex(8)}", pending
        return self.id

    def feedback(self, field: str) -> Listener:
        name = self.fields.feedback
        return self.listener(lambda pending, message: pending.feedback(text_of(message.get(field), name)))

    def listener(self, handle: Callable[[PendingSkill, Mapping[str, Any]], None]) -> Listener:
        """Return a listener for messages about the last goal; it raises DataError for a message without a goal id."""

        def listen(message: Any) -> None:
            id, (current, pending) = field_at(message, *self._path), self._last
            if id == current and pending is not None:
                handle(pending, message)

        return listen


class Ros2Action(ActionClient):
    """Client of a ROS 2 action, by the rosbridge operations ``send_action_goal`` and ``cancel_action_goal``."""

    def __init__(self, bridge: Bridge, name: str, kind: str, fields: Fields) -> None:
        super().__init__(bridge, fields, "id")
        self.name, self.kind = name, kind
        bridge.on_operation("action_feedback", self.feedback("values"))
        bridge.on_operation("action_result", self.listener(self._result))

    def begin(self, pending: PendingSkill) -> None:
        goal = {"action": self.name, "action_type": self.kind, "args": self.fields.goal(pending.skill)}
        self.bridge.send("send_action_goal", id=self.new_id(pending), feedback=True, **goal)

    def cancel(self) -> None:
        if self.id:
            self.bridge.send("cancel_action_goal", id=self.id, action=self.name)

    def _result(self, pending: PendingSkill, message: Mapping[str, Any]) -> None:
        values, status = message.get("values"), message.get("status")
        if status is None and isinstance(values, Mapping):
            status = values.get("status")  # older versions of rosbridge put the status into the values
        known = type(status) is int and status in ROS2_STATUSES
        success = known and status == SUCCEEDED and message.get("result") is not False
        default = f"the robot says {ROS2_STATUSES[status] if known else repr(status)[:80]}"
        pending.settle(self.fields.outcome(values, success, default))


class Ros1Action(ActionClient):
    """Client of a ROS 1 action, by actionlib's topics. roslibpy's own client hides a goal's status."""

    def __init__(self, bridge: Bridge, name: str, kind: str, fields: Fields) -> None:
        super().__init__(bridge, fields, "status", "goal_id", "id")
        self._goals = bridge.publisher(f"{name}/goal", f"{kind}Goal")
        self._cancels = bridge.publisher(f"{name}/cancel", "actionlib_msgs/GoalID")
        bridge.subscribe(f"{name}/feedback", f"{kind}Feedback", self.feedback("feedback"))
        bridge.subscribe(f"{name}/result", f"{kind}Result", self.listener(self._result))

    def begin(self, pending: PendingSkill) -> None:
        goal_id = {"id": self.new_id(pending), "stamp": ros1_time()}
        self._goals.publish({"goal_id": goal_id, "goal": self.fields.goal(pending.skill)})

    def cancel(self) -> None:
        if self.id:
            self._cancels.publish({"id": self.id, "stamp": {"secs": 0, "nsecs": 0}})

    def _result(self, pending: PendingSkill, message: Mapping[str, Any]) -> None:
        status = message["status"].get("status")
        known = type(status) is int and status in ROS1_ENDS
        default = text_of(message["status"], "text") or f"the robot says {ROS1_ENDS[status] if known else repr(status)}"
        pending.settle(self.fields.outcome(message.get("result", {}), known and status == SUCCEEDED_ROS1, default))


class ServiceCall:
    """Client of a service that returns when the skill has ended. Another service can cancel the skill."""

    def __init__(self, bridge: Bridge, name: str, kind: str, fields: Fields, cancel: str = "") -> None:
        self.bridge, self.fields = bridge, fields
        service = bridge.library.Service
        self._service = service(bridge.ros, name, kind)
        self._cancel = service(bridge.ros, cancel, "std_srvs/Trigger") if cancel else None

    def begin(self, pending: PendingSkill) -> None:
        self._call(self._service, self.fields.goal(pending.skill), self.fields, pending.settle)

    def cancel(self) -> None:
        """Call the cancel service. Raises RobotError if there is none."""
        if self._cancel is None:
            raise RobotError(f"service {self._service.name} cannot be cancelled: name a cancel service (cancel=...)")
        response_event = Event()

        def on_response(outcome: Outcome) -> None:
            if not outcome.ok:
                log.warning("service %s did not cancel the skill: %s", self._cancel.name, outcome.message)
            response_event.set()

        self._call(self._cancel, {}, TRIGGER_FIELDS, on_response)
        response_event.wait(CANCEL_TIMEOUT)  # otherwise a late cancellation could cancel the next skill

    def _call(self, service: Any, values: dict[str, str], fields: Fields, settle: Callable[[Outcome], None]) -> None:
        service.call(
            self.bridge.library.ServiceRequest(values),
            lambda response: settle(fields.outcome(response, True, "the robot does not say why")),
            lambda error: settle(failed(str(error) or "the service failed")),
        )
