from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from envs.outcome import Outcome, failed
from envs.worlds import GENERATED, WORLDS
from keep_agent.errors import ConfigError, SkillError
from keep_agent.robots import Limits, Observed, RobotError, RobotSession, SymbolicExecutor, symbolic
from keep_agent.robots.scripted import ScriptedPlanning
from keep_agent.robots.task.events import Event
from tests.keep_agent.robots.houses import clean_mug
from tests.keep_agent.robots.robots import WAIT, ScriptPlanner

QUICK = Limits(period=0.01)


def quiet(text: str) -> None:
    """Nobody listens."""


@pytest.mark.parametrize("world", [world.id for world in GENERATED.values()])
@pytest.mark.parametrize("skills", ["lota", "grounded"])
def test_any_world_can_be_played(world: str, skills: str) -> None:
    robot = symbolic(world, 1, skills=skills)
    session = RobotSession(ScriptedPlanning(robot), robot, limits=QUICK, judge=robot.judge)
    report = session.run(robot.task.instruction)
    assert report.success, report
    assert robot.success


def test_a_stream_of_tasks_goes_on_in_the_same_house() -> None:
    world = WORLDS["alfred"].spec
    [house] = world.episodes(None, "test", stream=3, limit=1)
    robot = SymbolicExecutor(world.setting(skills="grounded", observability="partial"), house)
    done = [RobotSession(ScriptedPlanning(robot), robot, judge=robot.judge).run(robot.task.instruction)]
    while robot.next_task():
        done.append(RobotSession(ScriptedPlanning(robot), robot, judge=robot.judge).run(robot.task.instruction))
    assert [report.success for report in done] == [True] * 3
    assert len({report.instruction for report in done}) > 1
    assert not robot.next_task()


def test_saying_done_too_early_is_no_success() -> None:
    robot = clean_mug()
    report = RobotSession(ScriptPlanner(), robot, limits=QUICK, judge=robot.judge).run("put it away")
    assert (report.stop, report.success) == ("done", False)
    assert "of 3 goal conditions hold" in report.message


def moving(robot: SymbolicExecutor, skill: str) -> Future[Outcome]:
    """A skill under way: the robot has said so."""
    future, begun = Future(), threading.Event()

    def move() -> None:
        try:
            future.set_result(robot.execute(skill, lambda text: begun.set()))
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=move, daemon=True).start()
    assert begun.wait(WAIT)
    return future


def first_walk(robot: SymbolicExecutor) -> str:
    return next(skill for skill in robot.skills() if skill.startswith("go to"))


def where(robot: SymbolicExecutor) -> str | None:
    return robot.knowledge.facts["agent"].place


def test_a_skill_cancelled_on_the_way_has_changed_nothing() -> None:
    robot = symbolic(seconds=1000)
    robot.observe()
    before = where(robot)
    under_way = moving(robot, first_walk(robot))
    robot.cancel()
    assert under_way.result(WAIT) == failed("cancelled before anything had changed")
    robot.observe()
    assert where(robot) == before


def test_a_skill_cancelled_late_has_taken_effect() -> None:
    robot = symbolic(seconds=1000, effect=0)
    robot.observe()
    skill = first_walk(robot)
    under_way = moving(robot, skill)
    while not robot.observe():
        pass
    robot.cancel()
    assert under_way.result(WAIT) == failed("cancelled when it had already taken effect")
    assert where(robot) == skill.removeprefix("go to ").replace(" ", "_")


def test_a_session_sees_the_world_change_during_a_motion() -> None:
    robot = symbolic(seconds=1000, effect=0)

    def watch(event: Event) -> None:
        if isinstance(event, Observed) and event.skill and any(fact.id == "agent" for fact in event.facts):
            robot.cancel()  # it would walk on for long

    report = RobotSession(ScriptPlanner([first_walk(robot)]), robot, limits=QUICK, watch=watch).run("walk")
    assert report.steps[0].outcome == failed("cancelled when it had already taken effect")


def test_one_skill_at_a_time() -> None:
    robot = symbolic(seconds=1000)
    under_way = moving(robot, first_walk(robot))
    with pytest.raises(RobotError, match="cancel that"):
        robot.execute("done", quiet)
    robot.cancel()
    assert not under_way.result(WAIT).ok


def test_an_unknown_skill_is_named() -> None:
    with pytest.raises(SkillError, match="fly"):
        symbolic().execute("fly to the moon", quiet)


def test_a_skill_that_cannot_work_says_why() -> None:
    robot = clean_mug()
    robot.observe()
    outcome = robot.execute("open fridge 1", quiet)
    assert not outcome.ok and outcome.message


@pytest.mark.parametrize("choices", [{"seconds": -1}, {"effect": 1.5}])
def test_times_that_cannot_be_are_refused(choices: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        symbolic(**choices)


def test_a_cancellation_without_a_skill_is_forgotten() -> None:
    robot = symbolic(seconds=0.02)
    robot.observe()
    robot.cancel()
    assert robot.execute(first_walk(robot), quiet).ok
