"""Robot behind a rosbridge as a `SkillExecutor`."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Condition, RLock, Thread
from typing import Any

from envs.fact import Fact
from envs.outcome import Outcome
from keep_agent.agent.validation import is_one_line
from keep_agent.errors import ConfigError, DataError
from keep_agent.robots.executor import RobotError, RobotTimeout, SkillLost, read_facts
from keep_agent.robots.ros.messages import PACKAGE, text_of
from keep_agent.robots.rosbridge import skill_clients
from keep_agent.robots.rosbridge.connection import Bridge, string_type, type_name
from keep_agent.robots.rosbridge.skill_clients import Fields, PendingSkill, SkillClient, SkillProtocol

MAX_FACTS = 100_000  # maximum of queued facts; the oldest are dropped


class RosbridgeExecutor:
    """Executor that calls a ROS action or service for each skill. The robot publishes facts as JSON in std_msgs/String.

    A skill that ended with `SkillLost` is cancelled before another skill begins.

    :param skills: the skills, or the name of a latched topic with a JSON array of the currently possible skills
    :param kind: whether ``name`` is an action of ROS 2 or ROS 1, or a service
    :param type: type of the action or service; "" means this project's action, and is an error for kind=service
    :param facts: name of the topic of facts, whose messages `read_facts` reads
    :param fields: field names in the robot's messages
    :param cancel: name of a std_srvs/Trigger service that cancels the skill, for kind=service; "": there is none
    :param timeout: seconds to wait for the first message with skills
    :param silence: seconds after which a cancelled skill without a result counts as lost
    """

    def __init__(
        self,
        bridge: Bridge,
        skills: Sequence[str] | str,
        *,
        kind: SkillProtocol = "ros2_action",
        name: str = "/execute_skill",
        type: str = "",
        facts: str = "/facts",
        fields: Fields | None = None,
        cancel: str = "",
        timeout: float = 10.0,
        silence: float = 30.0,
    ) -> None:
        self.bridge, self.timeout, self.silence = bridge, timeout, silence
        self._changed = Condition()
        self._facts: deque[Fact] = deque(maxlen=MAX_FACTS)
        self._skills: tuple[str, ...] | None = None
        self._pending: PendingSkill | None = None
        self._send_lock = RLock()
        self._skill_lost = False  # whether the last skill may still be running
        self._client = _client_of(bridge, kind, name, type, fields or Fields(), cancel)
        text = string_type("ros2" if kind == "ros2_action" or type.count("/") > 1 else "ros1")
        bridge.subscribe(facts, text, self._on_facts)
        if isinstance(skills, str):
            bridge.subscribe(skills, text, self._on_skills)
        else:
            self._skills = tuple(skills)
        bridge.on_lost(self._on_lost)
        bridge.on_ready(lambda: Thread(target=self._cancel_lost, daemon=True).start())

    def skills(self) -> Sequence[str]:
        """Return the possible skills. Raises ConnectionLost, or RobotTimeout if the robot sends none in time."""
        self.bridge.check()
        with self._changed:
            if not self._changed.wait_for(lambda: self._skills is not None, self.timeout):
                raise RobotTimeout(f"the robot at {self.bridge.where} did not name its skills in {self.timeout:g} s")
            return self._skills or ()

    def observe(self) -> Sequence[Fact]:
        """Return new facts. Raises ConnectionLost, which ends the task: a disconnected robot must not be moved."""
        self.bridge.check()
        with self._changed:
            facts, self._facts = self._facts, deque(maxlen=MAX_FACTS)
        return facts

    def execute(self, skill: str, feedback: Callable[[str], None]) -> Outcome:
        """Carry out a skill. Raises ConnectionLost without a connection, SkillLost if no result will arrive."""
        pending = PendingSkill(skill, feedback)
        with self._changed:
            if self._pending is not None:
                raise RobotError(f"{skill!r} cannot begin before {self._pending.skill!r} has ended: cancel that skill")
            self._pending = pending
        try:
            self.bridge.check()
            with self._send_lock:
                self._cancel_lost()
                self._client.begin(pending)
            return pending.future.result()
        except SkillLost:
            self._skill_lost = True
            self._cancel_lost()  # at once if there is a connection, otherwise after the reconnection
            raise
        finally:
            pending.stop_timer()
            with self._changed:
                self._pending = None

    def cancel(self) -> None:
        """Cancel the running skill. Raises ConnectionLost, or RobotError if the robot has no way to cancel."""
        if (pending := self._pending) is not None:
            self.bridge.check()
            self._client.cancel()
            pending.start_timer(self.silence)

    def _cancel_lost(self) -> None:
        """Cancel a lost skill if there is a connection. The lock keeps other skills from beginning during the call."""
        with self._send_lock:
            if self._skill_lost and self.bridge.connected:
                self._skill_lost = False
                with suppress(RobotError):  # there is no cancel service, or the connection is lost again
                    self._client.cancel()

    def _on_facts(self, message: Any) -> None:
        facts = read_facts(text_of(message, "data"))
        with self._changed:
            self._facts.extend(facts)
            self._changed.notify_all()

    def _on_skills(self, message: Any) -> None:
        skills = read_skills(text_of(message, "data"))
        with self._changed:
            self._skills = skills
            self._changed.notify_all()

    def _on_lost(self) -> None:
        if (pending := self._pending) is not None:
            where = f"the connection to the rosbridge at {self.bridge.where} broke"
            pending.fail(SkillLost(f"{where} while {pending.skill!r} was carried out: the robot may still be moving"))


def read_skills(text: str) -> tuple[str, ...]:
    """Read skills from a JSON array of strings. Raises DataError."""
    try:
        skills = json.loads(text)
    except (ValueError, RecursionError):
        skills = None
    if not isinstance(skills, list) or not all(isinstance(text, str) and text and is_one_line(text) for text in skills):
        raise DataError(f"skills must be a JSON array of texts without line breaks, not {text:.80}")
    return tuple(skills)


def _client_of(bridge: Bridge, kind: SkillProtocol, name: str, type: str, fields: Fields, cancel: str) -> SkillClient:
    match kind:
        case "ros2_action":
            return skill_clients.Ros2Action(bridge, name, type or type_name(PACKAGE, "action", "Task", "ros2"), fields)
        case "ros1_action":
            return skill_clients.Ros1Action(bridge, name, type or f"{PACKAGE}/TaskAction", fields)
        case "service":
            if not type:
                raise ConfigError("kind=service needs the type of the service, such as type='my_robot/DoSkill'")
            return skill_clients.ServiceCall(bridge, name, type, fields, cancel)
    raise ConfigError(f"kind={kind!r} is unknown; use ros2_action, ros1_action or service")
