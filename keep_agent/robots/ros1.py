"""ROS 1 node: action ``plan_and_execute``, services ``plan`` and ``report``, topics ``status`` and ``facts``."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from functools import partial
from typing import Any, Unpack

from envs.clock import Clock
from keep_agent.agent.types import Planning
from keep_agent.guard import guarded
from keep_agent.robots.command import make_setup, parser
from keep_agent.robots.executor import ConnectionLost, SkillExecutor
from keep_agent.robots.ros.messages import ACTION, FACTS, PLAN, REPORT, STATUS, instruction_of
from keep_agent.robots.ros.ros1_messages import message_classes, ros1
from keep_agent.robots.service import RobotService
from keep_agent.robots.session import SessionOptions

PREEMPTED = "the goal was cancelled or replaced by another"
POLL = 0.02  # seconds
RESULT_TIMEOUT = 2.0  # seconds in which rospy sends the result of a stopped goal, even on a busy machine
TASK_END_TIMEOUT = 10.0  # seconds in which the goal of a stopped task ends, even on a busy machine


class Ros1Node:
    """Node ``name`` with an action, services and topics below its name. It sets no signal handlers.

    Raises NotInstalled without ROS 1, ConnectionLost without a master. A process can have only one node.
    """

    def __init__(
        self, planner: Planning, executor: SkillExecutor, *, name: str = "keep_agent", **options: Unpack[SessionOptions]
    ) -> None:
        self.rospy, actionlib, self.messages = ros1("rospy"), ros1("actionlib"), message_classes()
        string = ros1("std_msgs.msg").String
        _reach_master()
        self.rospy.init_node(name, disable_signals=True)
        self.service = RobotService(planner, executor, send=lambda text: self._status.publish(text), **options)
        self._status = self.rospy.Publisher(f"{name}/{STATUS}", string, queue_size=100, latch=True)
        self.service.announce()
        self.rospy.Subscriber(f"{name}/{FACTS}", string, lambda message: self.service.facts(message.data))
        self.rospy.Service(f"{name}/{PLAN}", self.messages.plan, self._plan)
        self.rospy.Service(f"{name}/{REPORT}", self.messages.report, self._report)
        task = self.messages.task
        self.server = actionlib.SimpleActionServer(f"{name}/{ACTION}", task, self._execute, auto_start=False)
        self._message_types = task().action_result.result.__class__, task().action_feedback.feedback.__class__
        self.server.register_preempt_callback(partial(self.service.stop, PREEMPTED))
        self.server.start()

    def spin(self) -> None:
        """Wait until ROS shuts the node down. Ctrl-C raises KeyboardInterrupt, which `rospy.spin` would catch."""
        while not self.rospy.is_shutdown():
            time.sleep(5 * POLL)

    def close(self) -> None:
        """Stop the running task, inform its client, and shut the node down."""
        was_active = self.server.is_active()
        clock = Clock(TASK_END_TIMEOUT if self.service.close() else RESULT_TIMEOUT)
        while self.server.is_active() and clock.remaining > 0:
            time.sleep(POLL)
        if was_active:
            time.sleep(RESULT_TIMEOUT)  # rospy sends results on its own threads, and drops queued ones at shutdown
        self.rospy.signal_shutdown("closed")

    def _execute(self, goal: Any) -> None:
        result, feedback = self._message_types
        instruction = instruction_of(goal.task, goal.description)
        report = self.service.run(
            instruction, lambda text: self.server.publish_feedback(feedback(text)), self.server.is_preempt_requested
        )
        answer = result(report.success, str(report))
        if report.success:
            self.server.set_succeeded(answer, report.stop)
        elif self.server.is_preempt_requested():
            self.server.set_preempted(answer, report.stop)
        else:
            self.server.set_aborted(answer, report.stop)

    def _plan(self, request: Any) -> Any:
        answer = self.service.plan(request.instruction, request.skills)
        return self.messages.plan._response_class(answer.skill, answer.ok, answer.report)

    def _report(self, request: Any) -> Any:
        answer = self.service.report(request.ok, request.message)
        return self.messages.report._response_class(answer.ok, answer.report)


def _reach_master() -> None:
    """Raises ConnectionLost if no ROS master answers: `rospy.init_node` would wait for it forever."""
    rosgraph = ros1("rosgraph")
    if not rosgraph.is_master_online():
        uri = rosgraph.rosenv.get_master_uri()
        raise ConnectionLost(f"no ROS master answers at {uri}: start roscore, or set ROS_MASTER_URI")


def main() -> None:
    """Run the command. Exit code 2: bad input or no ROS, one line on standard error; 130: interrupted."""
    arguments = parser("python -m keep_agent.robots.ros1", __doc__).parse_args()
    sys.exit(guarded(lambda: _serve(arguments)))


def _serve(arguments: Namespace) -> None:
    robot = make_setup(arguments)
    node = Ros1Node(robot.planner, robot.executor, name=arguments.name, **robot.options)
    sys.stderr.write(f"listening on {node.rospy.resolve_name(arguments.name)}/{ACTION}; Ctrl-C ends it\n")
    try:
        node.spin()
    finally:
        node.close()


if __name__ == "__main__":
    main()
