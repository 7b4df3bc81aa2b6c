"""What is said over ROS, as ROS writes it down. docs/robots.md shows how to make a package of it.

The action has the goal, feedback and result of RAI's ``Task.action`` (RobotecAI/rai), with a report.
"""

from __future__ import annotations

PACKAGE = "keep_agent_msgs"

TASK_ACTION = """\
string task
string description
string priority
---
bool success
string report
---
string current_status
"""

PLAN_SERVICE = """\
string instruction
string[] skills
---
string skill
bool ok
string report
"""

REPORT_SERVICE = """\
bool ok
string message
---
bool ok
string report
"""

# Names below the namespace of a node
ACTION, PLAN, REPORT, STATUS, FACTS = "plan_and_execute", "plan", "report", "status", "facts"


def instruction_of(task: str, description: str) -> str:
    """What the planner is told of a goal: the task; its description where the task says nothing."""
    return task.strip() or description.strip()
