"""A ROS 2 node with the same words: the action ``plan_and_execute``, services ``plan`` and ``report``, topics.

**It was never run here**: there was no ROS 2 on the machine where it was written. It follows rclpy's documentation, and
does no more than hand over to `RobotService`, which is tested. It needs a compiled package ``keep_agent_msgs``, whose
definitions are those of `keep_agent.robots.messages` (docs/robots.md). Where you have none, take the rosbridge.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from keep_agent.guard import guarded
from keep_agent.robots.command import parser, robot_of
from keep_agent.robots.errors import NotInstalled
from keep_agent.robots.messages import ACTION, FACTS, PACKAGE, PLAN, REPORT, STATUS, instruction_of
from keep_agent.robots.service import RobotService

if TYPE_CHECKING:
    from keep_agent.api import Planning
    from keep_agent.robots.executor import SkillExecutor
    from keep_agent.robots.limits import Limits
    from keep_agent.robots.run import Judge


def ros2(name: str) -> ModuleType:
    """A module of ROS 2. Raises NotInstalled."""
    try:
        return import_module(name)
    except ImportError as error:
        raise NotInstalled(
            f"{name} cannot be imported ({error}): install ROS 2, source its setup.bash, and build {PACKAGE} as "
            "docs/robots.md shows; or go over a rosbridge (python -m keep_agent.robots.rosbridge_server)"
        ) from error


class Ros2Node:
    """Names below ``name``. `rclpy.init` and `rclpy.shutdown` are the caller's."""

    def __init__(
        self,
        planner: Planning,
        executor: SkillExecutor,
        *,
        name: str = "keep_agent",
        limits: Limits | None = None,
        judge: Judge | None = None,
    ) -> None:
        action, qos, groups = ros2("rclpy.action"), ros2("rclpy.qos"), ros2("rclpy.callback_groups")
        services, string = ros2(f"{PACKAGE}.srv"), ros2("std_msgs.msg").String
        self._task, self._string, self._responses = ros2(f"{PACKAGE}.action").Task, string, action.CancelResponse
        self.node = ros2("rclpy.node").Node(name)
        self.service = RobotService(planner, executor, limits=limits, judge=judge, tell=self._tell)
        latched = qos.QoSProfile(depth=1, durability=qos.DurabilityPolicy.TRANSIENT_LOCAL)
        together: Any = groups.ReentrantCallbackGroup()
        self._status = self.node.create_publisher(string, f"{name}/{STATUS}", latched)
        self.node.create_subscription(string, f"{name}/{FACTS}", self._facts, 100, callback_group=together)
        self.node.create_service(services.Plan, f"{name}/{PLAN}", self._plan, callback_group=together)
        self.node.create_service(services.Report, f"{name}/{REPORT}", self._report, callback_group=together)
        self.server = action.ActionServer(
            self.node,
            self._task,
            f"{name}/{ACTION}",
            self._execute,
            cancel_callback=self._cancel,
            callback_group=together,
        )
        self.service.announce()

    def close(self) -> None:
        """Stop what runs. Whoever spins goes on until then."""
        self.service.close()
        self.server.destroy()
        self.node.destroy_node()

    def _tell(self, text: str) -> None:
        self._status.publish(self._string(data=text))

    def _facts(self, message: Any) -> None:
        self.service.facts(message.data)

    def _cancel(self, goal: Any) -> Any:
        self.service.stop("the goal was cancelled")
        return self._responses.ACCEPT

    def _execute(self, goal: Any) -> Any:
        instruction = instruction_of(goal.request.task, goal.request.description)
        report = self.service.run(
            instruction,
            lambda text: goal.publish_feedback(self._task.Feedback(current_status=text)),
            lambda: goal.is_cancel_requested,
        )
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
    """Exit code 2: bad input or no ROS 2, one line on standard error; 130: interrupted."""
    arguments = parser("python -m keep_agent.robots.ros2", __doc__).parse_args()
    sys.exit(guarded(lambda: _serve(arguments)))


def _serve(arguments: Namespace) -> None:
    rclpy, executors = ros2("rclpy"), ros2("rclpy.executors")
    robot = robot_of(arguments)
    rclpy.init()
    try:
        node = Ros2Node(robot.planner, robot.executor, name=arguments.name, limits=robot.limits, judge=robot.judge)
        threads = executors.MultiThreadedExecutor()
        threads.add_node(node.node)
        try:
            threads.spin()
        finally:
            node.close()
    finally:
        rclpy.try_shutdown()


if __name__ == "__main__":
    main()
