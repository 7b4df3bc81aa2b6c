from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from envs.outcome import Outcome, failed
from envs.worlds import GENERATED, WORLDS
from keep_agent.errors import ConfigError, SkillError
from keep_agent.robots import Limits, Observed, RobotError, RobotSession, SymbolicExecutor, TaskReport, symbolic
from keep_agent.robots.scripted import ScriptedPlanning
from keep_agent.robots.task.events import Event
from tests.keep_agent.robots.houses import clean_mug
from tests.keep_agent.robots.robots import WAIT, ScriptPlanner

QUICK = Limits(period=0.01)


def expert_run(robot: SymbolicExecutor) -> TaskReport:
    session = RobotSession(ScriptedPlanning(robot), robot, limits=QUICK, judge=robot.judge)
    return session.run(robot.task.instruction)


@pytest.mark.parametrize("world", [world.id for world in GENERATED.values()])
@pytest.mark.parametrize("skills", ["lota", "grounded"])
def test_expert_succeeds_in_every_world(world: str, skills: str) -> None:
    robot = symbolic(world, 1, skills=skills)
    report = expert_run(robot)
    assert report.success and robot.success, report


def test_tasks_of_a_stream_follow_in_the_same_house() -> None:
    world = WORLDS["alfred"].spec
    [house] = world.episodes(None, "test", stream=3, limit=1)
    robot = SymbolicExecutor(world.setting(skills="grounded", observability="partial"), house)
    reports = [expert_run(robot)]
    while robot.next_task():
        reports.append(expert_run(robot))
    assert [report.success for report in reports] == [True] * 3
    assert len({report.instruction for report in reports}) > 1 and not robot.next_task()


def test_early_done_is_no_success() -> None:
    robot = clean_mug()
    report = RobotSession(ScriptPlanner(), robot, limits=QUICK, judge=robot.judge).run("put it away")
    assert (report.stop, report.success) == ("done", False) and "of 3 goal conditions hold" in report.message


def begin(robot: SymbolicExecutor, skill: str) -> Future[Outcome]:
    """Begin a skill on another thread, and return after its first feedback."""
    future, moving = Future(), threading.Event()

    def move() -> None:
        try:
            future.set_result(robot.execute(skill, lambda text: moving.set()))
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=move, daemon=True).start()
    assert moving.wait(WAIT)
    return future


def robot_and_walk(**options: float) -> tuple[SymbolicExecutor, str]:
    """Make a robot that has observed its surroundings, with a skill that moves it."""
    robot = symbolic(**options)
    robot.observe()
    return robot, next(skill for skill in robot.skills() if skill.startswith("go to"))


def place(robot: SymbolicExecutor) -> str | None:
    return robot.knowledge.facts["agent"].place


def test_skill_cancelled_early_has_no_effect() -> None:
    robot, walk = robot_and_walk(seconds=1000)
    before = place(robot)
    motion = begin(robot, walk)
    with pytest.raises(RobotError, match="cancel that"):
        robot.execute("done", str)
    robot.cancel()
    assert motion.result(WAIT) == failed("cancelled before anything had changed")
    robot.observe()
    assert place(robot) == before


def test_session_observes_the_effect_of_a_skill_cancelled_late() -> None:
    robot, walk = robot_and_walk(seconds=1000, effect=0)

    def watch(event: Event) -> None:
        if isinstance(event, Observed) and event.skill and any(fact.id == "agent" for fact in event.facts):
            robot.cancel()  # the skill would last 1000 s

    report = RobotSession(ScriptPlanner([walk]), robot, limits=QUICK, watch=watch).run("walk")
    assert report.steps[0].outcome == failed("cancelled when it had already taken effect")
    assert place(robot) == walk.removeprefix("go to ").replace(" ", "_")


def test_unknown_skill_is_an_error() -> None:
    with pytest.raises(SkillError, match="fly"):
        symbolic().execute("fly to the moon", str)


def test_impossible_skill_fails_with_a_reason() -> None:
    robot = clean_mug()
    robot.observe()
    outcome = robot.execute("open fridge 1", str)
    assert not outcome.ok and outcome.message


@pytest.mark.parametrize("choices", [{"seconds": -1}, {"effect": 1.5}])
def test_times_out_of_range_are_refused(choices: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        symbolic(**choices)


def test_cancellation_without_a_skill_has_no_effect() -> None:
    robot, walk = robot_and_walk(seconds=0.02)
    robot.cancel()
    assert robot.execute(walk, str).ok
