"""Planner node behind a rosbridge: it serves plans, tasks and a status to a robot. ``--help`` lists the options."""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import partial
from threading import Thread
from typing import Any, Unpack

from keep_agent.agent.types import Planning
from keep_agent.errors import DataError
from keep_agent.guard import guarded
from keep_agent.robots.command import make_setup, parser
from keep_agent.robots.executor import SkillExecutor
from keep_agent.robots.ros import messages
from keep_agent.robots.ros.messages import PACKAGE, text_of
from keep_agent.robots.rosbridge.action_server import ABORTED, PREEMPTED, SUCCEEDED, BridgeActionServer, GoalEnd
from keep_agent.robots.rosbridge.connection import Bridge, Distribution, string_type, type_name
from keep_agent.robots.service import RobotService
from keep_agent.robots.session import SessionOptions

TASK, STOP = "task", "stop"  # topics with standard message types


class RosbridgeServer:
    """Server of services ``plan``, ``report`` and topics ``status``, ``facts``, ``task``, ``stop``, below ``/name``.

    With ROS 1 it also serves the action ``plan_and_execute`` by actionlib's topics. ``task`` takes an instruction as
    std_msgs/String, for clients without this project's messages, and for ROS 2, where roslibpy cannot serve actions.
    """

    def __init__(
        self,
        bridge: Bridge,
        planner: Planning,
        executor: SkillExecutor,
        *,
        distribution: Distribution = "ros1",
        name: str = "keep_agent",
        **options: Unpack[SessionOptions],
    ) -> None:
        self.bridge, self.distribution, self.name = bridge, distribution, f"/{name.strip('/')}"
        self.service = RobotService(planner, executor, send=self._publish_status, **options)
        self._status = bridge.publisher(f"{self.name}/{messages.STATUS}", string_type(distribution), latch=True)
        self._subscribe(messages.FACTS, self.service.facts)
        self._subscribe(TASK, lambda task: Thread(target=self._run_task, args=(task,), daemon=True).start())
        self._subscribe(STOP, lambda reason: self.service.stop(reason or "stop was pressed"))
        self._advertise(messages.PLAN, "Plan", self._plan)
        self._advertise(messages.REPORT, "Report", self._report)
        self.server = None
        if distribution == "ros1":
            kind = f"{PACKAGE}/TaskAction"
            preempt = partial(self.service.stop, "the goal was cancelled or replaced by another")
            self.server = BridgeActionServer(bridge, f"{self.name}/{messages.ACTION}", kind, self._execute, preempt)
        self.service.announce()

    def close(self) -> None:
        """Stop the running task and inform its client. The connection stays open."""
        self.service.close()
        if self.server is not None:
            self.server.close(1.0)

    def _publish_status(self, text: str) -> None:
        if self.bridge.connected:
            self._status.publish({"data": text})

    def _subscribe(self, key: str, listener: Callable[[str], object]) -> None:
        text = string_type(self.distribution)
        self.bridge.subscribe(f"{self.name}/{key}", text, lambda message: listener(text_of(message, "data")))

    def _advertise(self, key: str, kind: str, answer: Callable[[Any], dict[str, Any]]) -> None:
        """Advertise a service. Each request gets a thread, since roslibpy runs all callbacks on one thread."""
        service, service_type = f"{self.name}/{key}", type_name(PACKAGE, "srv", kind, self.distribution)

        def respond(request: Mapping[str, Any]) -> None:
            values = answer(request.get("args"))
            if self.bridge.connected:
                called = {"id": request["id"]} if "id" in request else {}
                self.bridge.send("service_response", service=service, values=values, result=True, **called)

        self.bridge.ros.on(service, lambda request: Thread(target=respond, args=(request,), daemon=True).start())
        self.bridge.on_ready(lambda: self.bridge.send("advertise_service", type=service_type, service=service))

    def _plan(self, request: Any) -> dict[str, Any]:
        skills = request.get("skills") if isinstance(request, Mapping) else None
        answer = self.service.plan(text_of(request, "instruction"), skills if isinstance(skills, list) else [])
        return {"skill": answer.skill, "ok": answer.ok, "report": answer.report}

    def _report(self, request: Any) -> dict[str, Any]:
        """Report the result of a skill; a request without a valid ``ok`` reports a failure."""
        ok, message, problem = False, text_of(request, "message"), ""
        try:
            ok = messages.flag_of(request, "ok")
        except DataError as error:
            message = problem = str(error)
        answer = self.service.report(ok, message)
        return {"ok": answer.ok and not problem, "report": answer.report or problem}

    def _execute(
        self, goal: Mapping[str, Any], feedback: Callable[[Mapping[str, Any]], None], stopped: Callable[[], bool]
    ) -> GoalEnd:
        instruction = messages.instruction_of(text_of(goal, "task"), text_of(goal, "description"))
        report = self.service.run(instruction, lambda text: feedback({"current_status": text}), stopped)
        status = SUCCEEDED if report.success else PREEMPTED if stopped() else ABORTED
        return GoalEnd(status, report.stop, {"success": report.success, "report": str(report)})

    def _run_task(self, instruction: str) -> None:
        """Run a task. A rejection is published as a status, since a topic has no response."""
        report = self.service.run(instruction)
        if report.stop == "busy":
            refusal = {"refused": instruction, "report": str(report)}
            self._publish_status(json.dumps(json.loads(self.service.status.to_json()) | refusal))


def main() -> None:
    """Run the command. Exit code 2: bad input or no rosbridge, one line on standard error; 130: interrupted."""
    options = parser("python -m keep_agent.robots.rosbridge_server", __doc__)
    options.add_argument("--host", default="localhost", help="host of the rosbridge (default: %(default)s)")
    options.add_argument("--port", type=int, default=9090, help="port of the rosbridge (default: %(default)s)")
    options.add_argument("--timeout", type=float, default=10.0, help="seconds to connect (default: %(default)s)")
    options.add_argument("--distribution", choices=("ros1", "ros2"), default="ros1", help="ROS version (default: ros1)")
    arguments = options.parse_args()
    sys.exit(guarded(lambda: _serve(arguments)))


def _serve(arguments: Namespace) -> None:
    robot = make_setup(arguments)
    with Bridge(arguments.host, arguments.port, arguments.timeout) as bridge:
        choices = {"distribution": arguments.distribution, "name": arguments.name, **robot.options}
        server = RosbridgeServer(bridge, robot.planner, robot.executor, **choices)
        sys.stderr.write(f"listening on {server.name} at {bridge.where}; Ctrl-C ends it\n")
        try:
            while True:
                time.sleep(1)
        finally:
            server.close()


if __name__ == "__main__":
    main()
