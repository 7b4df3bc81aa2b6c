"""ROS client in a process of its own: runs the function that is named, and prints the results as one line of JSON."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable

from keep_agent.robots.ros.ros1_messages import message_classes, ros1
from tests.waiting import PATIENCE

WAIT = PATIENCE
rospy, actionlib = ros1("rospy"), ros1("actionlib")
String = ros1("std_msgs.msg").String
SRV, TASK = message_classes(), message_classes().task
Goal = type(TASK().action_goal.goal)


class Listener:
    """Action client of a node that records statuses and feedback."""

    def __init__(self, name: str) -> None:
        self.feedback: list[str] = []
        self.statuses: list[dict] = []
        self.news = threading.Condition()
        rospy.Subscriber(f"{name}/status", String, lambda message: self._add(self.statuses, json.loads(message.data)))
        self.action = actionlib.SimpleActionClient(f"{name}/plan_and_execute", TASK)
        assert self.action.wait_for_server(rospy.Duration(WAIT)), "no action server"
        self.until(lambda: self.statuses)  # later statuses are received, too

    def _add(self, values: list, value: object) -> None:
        with self.news:
            values.append(value)
            self.news.notify_all()

    def until(self, condition: Callable[[], object]) -> None:
        with self.news:
            assert self.news.wait_for(condition, WAIT), (self.feedback, self.statuses)

    def until_moving(self) -> None:
        self.until(lambda: any("on the way" in text for text in self.feedback))

    def send(self, task: str) -> None:
        goal = Goal(task=task, description="", priority="normal")
        self.action.send_goal(goal, feedback_cb=lambda message: self._add(self.feedback, message.current_status))

    def outcome(self) -> dict:
        assert self.action.wait_for_result(rospy.Duration(WAIT)), "no result"
        self.until(lambda: self.statuses[-1]["stop"])
        result = self.action.get_result()
        fields = {"success": result.success, "report": result.report} if result else {}
        return {"state": self.action.get_state(), **fields}


def do(listener: Listener, name: str, task: str) -> dict:
    listener.send(task)
    return listener.outcome()


def cancel(listener: Listener, name: str, task: str) -> dict:
    listener.send(task)
    listener.until_moving()
    listener.action.cancel_goal()
    return listener.outcome()


def insist(listener: Listener, name: str, task: str) -> dict:
    """Send a goal again after its failure, like a behaviour tree."""
    listener.send(task)
    assert listener.action.wait_for_result(rospy.Duration(WAIT)), "no result"
    first = {"state": listener.action.get_state(), "report": listener.action.get_result().report}
    listener.until(lambda: any(status["step"] for status in listener.statuses))
    listener.send(task)
    listener.action.wait_for_result(rospy.Duration(2))  # the node may be gone
    return first


def replace(listener: Listener, name: str, task: str) -> dict:
    """Replace a goal by that of another client, as with actionlib's simple server."""
    listener.send(task)
    listener.until_moving()
    second = actionlib.SimpleActionClient(f"{name}/plan_and_execute", TASK)
    assert second.wait_for_server(rospy.Duration(WAIT))
    second.send_goal(Goal(task=f"{task} again"))
    assert listener.action.wait_for_result(rospy.Duration(WAIT))
    assert second.wait_for_result(rospy.Duration(WAIT))
    listener.until(lambda: sum(bool(status["stop"]) for status in listener.statuses) == 2)
    return {"state": listener.action.get_state(), "second": second.get_state()}


def late(listener: Listener, name: str, task: str) -> dict:
    """Send nothing: a client that connects late still receives the latched status."""
    return {}


def wait(listener: Listener, name: str, task: str) -> dict:
    listener.until(lambda: any(status["state"] == "executing" for status in listener.statuses))
    return {}


def plan(listener: Listener, name: str, task: str) -> dict:
    """Call the services with valid and invalid requests, and publish facts."""
    for service in ("plan", "report"):
        rospy.wait_for_service(f"{name}/{service}", WAIT)
    plan, report = rospy.ServiceProxy(f"{name}/plan", SRV.plan), rospy.ServiceProxy(f"{name}/report", SRV.report)
    facts = rospy.Publisher(f"{name}/facts", String, queue_size=1)
    while not facts.get_num_connections():
        rospy.sleep(0.01)
    facts.publish(json.dumps([{"id": "mug_1", "place": "table_1"}]))
    answers = [plan(task, ["open fridge 1", "done"]), report(False, "stuck"), report(True, "")]
    answers += [plan(task, []), plan("", ["a"])]
    return {"answers": [{slot: getattr(answer, slot) for slot in answer.__slots__} for answer in answers]}


def main() -> None:
    action, name, task = sys.argv[1:]
    rospy.init_node(f"client_{action}", disable_signals=True, anonymous=True)
    listener = Listener(name)
    actions = {function.__name__: function for function in (do, cancel, insist, replace, late, wait, plan)}
    result = actions[action](listener, name, task)
    sys.stdout.write(json.dumps(result | {"feedback": listener.feedback, "statuses": listener.statuses}) + "\n")
    rospy.signal_shutdown("done")


if __name__ == "__main__":
    main()
