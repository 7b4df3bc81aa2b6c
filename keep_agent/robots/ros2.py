"""ROS 2 node. Its action, services and topics have the same names as those of the ROS 1 node.

This node has never run with ROS 2, which was not available. It follows rclpy's documentation and is tested with a
mock of rclpy. It only passes calls to `RobotService`. It needs a compiled package ``keep_agent_msgs`` with the
definitions of `keep_agent.robots.ros.messages` (docs/robots.md). Without that package, use the rosbridge.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from importlib import import_module
from threading import Condition, Lock, Thread
from types import ModuleType
from typing import Any, Unpack

from keep_agent.agent.types import Planning
from keep_agent.guard import guarded
from keep_agent.robots.command import make_setup, parser
from keep_agent.robots.executor import NotInstalled, SkillExecutor
from keep_agent.robots.ros.messages import ACTION, FACTS, PACKAGE, PLAN, REPORT, STATUS, instruction_of
from keep_agent.robots.service import RobotService
from keep_agent.robots.session import SessionOptions
from keep_agent.robots.task.events import TaskReport

RESULT_TIMEOUT = 1.0  # seconds to wait for a stopped goal to end, and again for rclpy to send its result
POLL = 0.1  # seconds
THREADS = 8  # threads for callbacks: each running or waiting goal occupies one
REPLACED = "another goal replaced it"


def ros2(name: str) -> ModuleType:
    """Import a module of ROS 2. Raises NotInstalled."""
    try:
        return import_module(name)
    except ImportError as error:
        raise NotInstalled(
            f"{name} cannot be imported ({error}): install ROS 2, source its setup.bash, and build {PACKAGE} as "
            "docs/robots.md shows; or use a rosbridge instead (python -m keep_agent.robots.rosbridge_server)"
        ) from error


class Ros2Node:
    """Node with an action, services and topics below ``name``. It runs one goal at a time: a new goal stops the old.

    The caller calls `rclpy.init` and `rclpy.shutdown`, and spins the node with a multi-threaded executor.
    """

    def __init__(
        self, planner: Planning, executor: SkillExecutor, *, name: str = "keep_agent", **options: Unpack[SessionOptions]
    ) -> None:
        action, qos, groups = ros2("rclpy.action"), ros2("rclpy.qos"), ros2("rclpy.callback_groups")
        services, string = ros2(f"{PACKAGE}.srv"), ros2("std_msgs.msg").String
        self._task, self._action = ros2(f"{PACKAGE}.action").Task, action
        self._run_lock, self._changed = Lock(), Condition()
        self._latest: Any = None  # the current goal
        self._cancelled: Any = None  # the last cancelled goal
        self._open = 0  # number of accepted goals that have not ended
        self._closed = False
        self.node = ros2("rclpy.node").Node(name)
        latched = qos.QoSProfile(depth=1, durability=qos.DurabilityPolicy.TRANSIENT_LOCAL)
        status = self.node.create_publisher(string, f"{name}/{STATUS}", latched)
        self.service = RobotService(planner, executor, send=lambda text: status.publish(string(data=text)), **options)
        reentrant: Any = groups.ReentrantCallbackGroup()
        self.node.create_subscription(
            string, f"{name}/{FACTS}", lambda message: self.service.facts(message.data), 100, callback_group=reentrant
        )
        self.node.create_service(services.Plan, f"{name}/{PLAN}", self._plan, callback_group=reentrant)
        self.node.create_service(services.Report, f"{name}/{REPORT}", self._report, callback_group=reentrant)
        callbacks = {"goal_callback": self._admit, "cancel_callback": self._cancel, "callback_group": reentrant}
        self.server = action.ActionServer(
            self.node, self._task, f"{name}/{ACTION}", self._execute, handle_accepted_callback=self._begin, **callbacks
        )
        self.service.announce()

    def close(self) -> None:
        """Reject further goals, stop the running one and inform its client; the node must spin until this returns."""
        with self._changed:
            self._closed = True
            was_open = self._open > 0
        self.service.close()
        with self._changed:
            self._changed.wait_for(lambda: not self._open, RESULT_TIMEOUT)
        if was_open:
            time.sleep(RESULT_TIMEOUT)  # rclpy sends a result some time after `_execute` has returned
        self.server.destroy()
        self.node.destroy_node()

    def _admit(self, request: Any) -> Any:
        with self._changed:
            self._open += not self._closed
            return self._action.GoalResponse.REJECT if self._closed else self._action.GoalResponse.ACCEPT

    def _begin(self, goal: Any) -> None:
        self._latest = goal
        self.service.stop(REPLACED)
        goal.execute()

    def _cancel(self, goal: Any) -> Any:
        if goal is self._latest:  # otherwise a newer goal has replaced this goal and stopped it
            self._cancelled = goal  # `_execute` may begin before rclpy marks the goal as cancelled
            self.service.stop("the goal was cancelled")
        return self._action.CancelResponse.ACCEPT

    def _execute(self, goal: Any) -> Any:
        try:
            with self._run_lock:
                report = self.service.run(
                    instruction_of(goal.request.task, goal.request.description),
                    lambda text: goal.publish_feedback(self._task.Feedback(current_status=text)),
                    lambda: goal.is_cancel_requested or goal is self._cancelled or goal is not self._latest,
                )
            return self._end(goal, report)
        finally:
            with self._changed:
                self._open -= 1
                self._changed.notify_all()

    def _end(self, goal: Any, report: TaskReport) -> Any:
        if report.success:
            goal.succeed()
        elif goal.is_cancel_requested:
            goal.canceled()
        else:
            goal.abort()
        return self._task.Result(success=report.success, report=str(report))

    def _plan(self, request: Any, response: Any) -> Any:
        answer = self.service.plan(request.instruction, list(request.skills))
        response.skill, response.ok, response.report = answer.skill, answer.ok, answer.report
        return response

    def _report(self, request: Any, response: Any) -> Any:
        answer = self.service.report(request.ok, request.message)
        response.ok, response.report = answer.ok, answer.report
        return response


def main() -> None:
    """Run the command. Exit code 2: bad input or no ROS 2, one line on standard error; 130: interrupted."""
    arguments = parser("python -m keep_agent.robots.ros2", __doc__).parse_args()
    sys.exit(guarded(lambda: _serve(arguments)))


def _serve(arguments: Namespace) -> None:
    """Run the node without rclpy's signal handlers, which would shut rclpy down before a client has its result."""
    rclpy, executors, signals = ros2("rclpy"), ros2("rclpy.executors"), ros2("rclpy.signals")
    robot = make_setup(arguments)
    rclpy.init(signal_handler_options=signals.SignalHandlerOptions.NO)
    try:
        node = Ros2Node(robot.planner, robot.executor, name=arguments.name, **robot.options)
        threads = executors.MultiThreadedExecutor(num_threads=THREADS)
        threads.add_node(node.node)
        spinning = Thread(target=threads.spin, daemon=True)
        spinning.start()
        try:
            while spinning.is_alive():
                spinning.join(POLL)  # with a timeout, so that Ctrl-C is raised
        finally:
            node.close()
            threads.shutdown()
    finally:
        rclpy.try_shutdown()


if __name__ == "__main__":
    main()
