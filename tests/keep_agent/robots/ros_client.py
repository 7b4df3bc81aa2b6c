"""A user's own process: a goal, a cancellation, a plan; one line of JSON says what came of it."""

from __future__ import annotations

import json
import sys
import threading

from keep_agent.robots.ros.ros1_messages import classes, ros1
from tests.waiting import PATIENCE

WAIT = PATIENCE
rospy, actionlib = ros1("rospy"), ros1("actionlib")
String = ros1("std_msgs.msg").String
SRV, TASK = classes(), classes().task
Goal = type(TASK().action_goal.goal)


class Listener:
    """Keeps what the node says, and tells when something was said."""

    def __init__(self, name: str) -> None:
        self.feedback: list[str] = []
        self.statuses: list[dict] = []
        self.news = threading.Condition()
        rospy.Subscriber(f"{name}/status", String, self._status)
        self.action = actionlib.SimpleActionClient(f"{name}/plan_and_execute", TASK)
        assert self.action.wait_for_server(rospy.Duration(WAIT)), "no action server"
        self.until(lambda heard: heard.statuses)  # what comes from here on is heard

    def _status(self, message: object) -> None:
        with self.news:
            self.statuses.append(json.loads(message.data))
            self.news.notify_all()

    def feed(self, message: object) -> None:
        with self.news:
            self.feedback.append(message.current_status)
            self.news.notify_all()

    def until(self, found) -> None:
        with self.news:
            assert self.news.wait_for(lambda: found(self), WAIT), (self.feedback, self.statuses)

    def send(self, task: str) -> None:
        self.action.send_goal(Goal(task=task, description="", priority="normal"), feedback_cb=self.feed)

    def outcome(self) -> dict:
        assert self.action.wait_for_result(rospy.Duration(WAIT)), "no result"
        self.until(lambda heard: heard.statuses[-1]["stop"])
        result = self.action.get_result()
        told = {"success": result.success, "report": result.report} if result else {}
        return {"state": self.action.get_state(), **told}

    def heard(self) -> dict:
        return {"feedback": self.feedback, "statuses": self.statuses}


def do(listener: Listener, name: str, task: str) -> dict:
    listener.send(task)
    return listener.outcome()


def cancel(listener: Listener, name: str, task: str) -> dict:
    """As soon as the robot moves."""
    listener.send(task)
    listener.until(lambda heard: any("on the way" in text for text in heard.feedback))
    listener.action.cancel_goal()
    return listener.outcome()


def insist(listener: Listener, name: str, task: str) -> dict:
    """Again, as soon as it has failed, as a behaviour tree does."""
    listener.send(task)
    assert listener.action.wait_for_result(rospy.Duration(WAIT)), "no result"
    first = {"state": listener.action.get_state(), "report": listener.action.get_result().report}
    listener.until(lambda heard: any(status["step"] for status in heard.statuses))
    listener.send(task)
    listener.action.wait_for_result(rospy.Duration(2))  # perhaps there is nobody any more
    return first


def replace(listener: Listener, name: str, task: str) -> dict:
    """Another goal while one is on, by another client, as actionlib's simple server has it."""
    listener.send(task)
    listener.until(lambda heard: any("on the way" in text for text in heard.feedback))
    second = actionlib.SimpleActionClient(f"{name}/plan_and_execute", TASK)
    assert second.wait_for_server(rospy.Duration(WAIT))
    second.send_goal(Goal(task=f"{task} again"))
    assert listener.action.wait_for_result(rospy.Duration(WAIT))
    assert second.wait_for_result(rospy.Duration(WAIT))
    listener.until(lambda heard: sum(bool(status["stop"]) for status in heard.statuses) == 2)
    return {"state": listener.action.get_state(), "second": second.get_state()}


def late(listener: Listener, name: str, task: str) -> dict:
    """The last status is there for whoever comes late."""
    return {}


def plan(listener: Listener, name: str, task: str) -> dict:
    """Two plans with a report, an answer to nonsense, and facts."""
    for service in ("plan", "report"):
        rospy.wait_for_service(f"{name}/{service}", WAIT)
    ask = rospy.ServiceProxy(f"{name}/plan", SRV.plan)
    tell = rospy.ServiceProxy(f"{name}/report", SRV.report)
    facts = rospy.Publisher(f"{name}/facts", String, queue_size=1)
    while not facts.get_num_connections():
        rospy.sleep(0.01)
    facts.publish(json.dumps([{"id": "mug_1", "place": "table_1"}]))
    answers = [
        ask(task, ["open fridge 1", "done"]),
        tell(False, "stuck"),
        tell(True, ""),
        ask(task, []),
        ask("", ["a"]),
    ]
    slots = [{slot: getattr(answer, slot) for slot in answer.__slots__} for answer in answers]
    return {"answers": slots}


def main() -> None:
    what, name, task = sys.argv[1:]
    rospy.init_node(f"client_{what}", disable_signals=True, anonymous=True)
    listener = Listener(name)
    said = {"do": do, "cancel": cancel, "insist": insist, "replace": replace, "late": late, "plan": plan}[what](
        listener, name, task
    )
    sys.stdout.write(json.dumps(said | listener.heard()) + "\n")
    rospy.signal_shutdown("done")


if __name__ == "__main__":
    main()
