"""Faults of AI2-THOR's process raise a named error in time or let the episode continue, and leave nothing open."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from signal import SIGSTOP
from typing import Any

import pytest

from envs.alfred.scene import Episode
from envs.alfred.spec import load_episodes
from envs.alfred.thor import servers
from envs.alfred.thor.client import EMPTY_SCENE, ThorClient
from envs.alfred.thor.errors import ThorAnswer, ThorError, ThorGone, ThorLost, ThorRefusal, ThorStart, ThorTimeout
from envs.alfred.thor.options import ThorOptions
from envs.alfred.thor.view import top_view
from envs.clock import Clock
from keep_agent.errors import ConfigError, EpisodeError
from keep_agent.rollout.loop import run_episode
from planners.base import ExpertPlanner
from tests.envs.alfred.thor.leftovers import no_leaks, runs
from tests.envs.alfred.thor.playing import play, thor_env
from tests.waiting import PATIENCE, until

WSGI_TIMEOUT = 3.0  # seconds; ai2thor itself implements the time-outs of this server
SERVERS = ("fifo", pytest.param("wsgi", marks=pytest.mark.slow))
AT_START = {
    "die-before-pipe": "exit status|has ended|exited", "die-at-start": "exit status|has ended|exited",
    "die-before-actions": "exit status|has ended|exited", "hang-at-start": "within [0-9]+ s",
}  # fmt: skip
AT_WORK: dict[str, type[ThorError]] = {
    "die": ThorGone, "die-half": ThorGone, "hang": ThorTimeout, "sequence": ThorAnswer, "garbage": ThorAnswer,
}  # fmt: skip
EPISODES: list[Episode] = list(load_episodes(None, "valid")[:4])


def slow_except(values: Iterable[Any], *often: Any) -> list[Any]:
    return [pytest.param(value, marks=[pytest.mark.slow] * (value not in often)) for value in values]


def command(*faults: str, once: Path | None = None) -> str:
    words = [sys.executable, "-m", "envs.alfred.thor_stub", *(f"--fault {fault}" for fault in faults)]
    return " ".join([*words, *(["--once", str(once)] if once else [])])


def options(*faults: str, once: Path | None = None, **changes: Any) -> dict[str, Any]:
    """Return options with time-outs that a busy machine does not reach."""
    seconds = WSGI_TIMEOUT if changes.get("server") == "wsgi" else PATIENCE
    times = {"start_timeout": PATIENCE, "timeout": seconds}
    return {"executable": command(*faults, once=once), **times, **changes}


def simulator(*faults: str, once: Path | None = None, **changes: Any) -> ThorClient:
    return ThorClient(ThorOptions(**options(*faults, once=once, **changes)))


EndWaits = Callable[[Callable[[], bool]], None]


@pytest.fixture
def end_waits(monkeypatch: pytest.MonkeyPatch) -> EndWaits:
    """Return a function that lets the FIFO server's time-outs expire when a condition holds, whatever the time."""

    def make(condition: Callable[[], bool]) -> None:
        class Conditional(Clock):
            def timeout(self) -> float:
                if condition():
                    raise TimeoutError
                return super().timeout()

        monkeypatch.setattr(servers, "Clock", Conditional)

    return make


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("fault", slow_except(AT_START, "hang-at-start", "die-at-start"))
def test_a_process_that_does_not_start(fault: str, server: str, tmp_path: Path, end_waits: EndWaits) -> None:
    happened = tmp_path / "happened"
    if fault == "hang-at-start":
        end_waits(happened.exists)
    start = {"start_timeout": WSGI_TIMEOUT} if server == "wsgi" else {}
    thor = simulator(fault, once=happened, server=server, **start)
    with no_leaks(), pytest.raises(ThorStart, match=AT_START[fault]) as caught:
        thor.start()
    assert str(caught.value).count("AI2-THOR, ") == 1 and not thor.alive


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("fault", slow_except(AT_WORK, "die", "hang"))
def test_a_process_that_fails_at_work(fault: str, server: str, tmp_path: Path, end_waits: EndWaits) -> None:
    thor, happened = simulator(f"{fault}:12", once=tmp_path / "happened", server=server), tmp_path / "happened"
    if fault == "hang":
        end_waits(lambda: thor.alive and happened.exists())
    with no_leaks():
        thor.start()
        with pytest.raises(AT_WORK[fault], match="Pass: .* after [0-9.]+ s; ") as caught:
            for _ in range(20):
                thor.step("Pass")
        assert isinstance(caught.value, EpisodeError) and not thor.alive
        with pytest.raises(ThorGone, match="no process is running"):
            thor.step("Pass")
        end_waits(lambda: False)
        thor.start()  # a new process works
        assert thor.step("Pass").ok
        thor.close()
        thor.close()


def test_a_script_that_wraps_the_build_ends_with_it(end_waits: EndWaits) -> None:
    """A script such as xvfb-run starts the build (AI2-THOR's executable), which then hangs."""
    stopped: list[int] = []
    end_waits(lambda: bool(stopped))
    wrapped = ThorClient(ThorOptions(**options() | {"executable": f"sh -c '{command()} & wait; true'"}))
    wrapped.start()
    number = wrapped._controller.server.unity_proc.pid
    (child,) = map(int, Path(f"/proc/{number}/task/{number}/children").read_text().split())
    os.kill(child, SIGSTOP)
    stopped.append(child)
    with pytest.raises(ThorTimeout):
        wrapped.step("Pass")
    until(lambda: not runs(child))


def test_an_executable_that_is_no_build() -> None:
    with no_leaks(), pytest.raises(ThorStart, match="No such file|exit status|has ended"):
        ThorClient(ThorOptions(executable="no-such-program-anywhere")).start()
    with no_leaks(), pytest.raises(ThorStart, match="exit status 0"):
        ThorClient(ThorOptions(executable="true")).start()


def test_a_scene_that_the_build_does_not_have() -> None:
    thor = simulator()
    with no_leaks():
        with pytest.raises(ThorStart, match=r"'FloorPlan1_physics' not contained in build \(.*\)\.; see"):
            thor.start("FloorPlan1")
        thor.start(EMPTY_SCENE)
        with pytest.raises(ThorRefusal, match="has no scene FloorPlan1"):
            thor.reset("FloorPlan1")
        with pytest.raises(ThorError, match="house"):
            thor.reset({"rooms": []})
        thor.close()


@pytest.mark.parametrize("code", ["InvalidAction", "MissingArguments", "AmbiguousAction", "InvalidArgument", "Other"])
def test_a_refusal_of_the_build_is_a_reply(code: str) -> None:
    thor = simulator(f"error:12:{code}")
    thor.start()
    replies = [thor.step("Pass") for _ in range(12)]
    refusals = [reply for reply in replies if not reply.ok]
    assert len(refusals) == 1 and "injected" in refusals[0].message and refusals[0].unknown == (code != "Other")
    with pytest.raises(ThorRefusal, match="Fly: Invalid action"):
        thor.require("Fly")
    assert thor.alive
    thor.close()


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("at", slow_except((4, 5, 6, 7, 8, 9, 11, 14, 17), 11))
@pytest.mark.parametrize("fault", slow_except(AT_WORK, "die", "hang"))
def test_an_episode_continues_in_a_new_process(
    tmp_path: Path, fault: str, at: int, server: str, end_waits: EndWaits
) -> None:
    """The single fault happens while the room is set up, or while the expert plays."""
    with no_leaks(), thor_env(EPISODES) as calm:
        expected = play(calm, EPISODES[0])
    happened, noticed = tmp_path / "happened", []
    if fault == "hang":  # end only the wait in which the fault happens
        end_waits(lambda: not noticed and happened.exists() and not noticed.append(True))
    broken = options(f"{fault}:{at}", once=happened, server=server)
    with no_leaks(), thor_env(EPISODES, thor=broken) as env:
        assert play(env, EPISODES[0]) == expected and happened.exists() and env.world.restarts == 1
        _, info = env.reset(options={"episode": EPISODES[1]})
        assert info["restarts"] == 0


def test_a_second_fault_ends_only_the_episode() -> None:
    """Every process ends at its 14th action, and some episodes need more than two processes."""
    with no_leaks(), thor_env(EPISODES, thor=options("die:14")) as env:
        expert = env.setting.expert()
        planner = ExpertPlanner(lambda info: expert.act(info["world"], info["task"], info["knowledge"]))
        results = [
            run_episode(env, planner, episode, index=index, skills="lota", seed=0)[0]
            for index, episode in enumerate(EPISODES)
        ]
    stops = [task.stop for result in results for task in result.tasks]
    assert set(stops) <= {"success", "crash"} and "crash" in stops
    assert all("ThorGone" in result.error for result in results if result.crashed)


def test_a_room_that_differs_after_a_restart(tmp_path: Path) -> None:
    with no_leaks(), thor_env(EPISODES) as env:
        env.reset(options={"episode": EPISODES[0]})
        container = next(thing for thing in env.world.things.values() if thing.openable and not thing.is_open)
        assert env.world.open(container.id).ok
        env.world._actions.clear()  # the restart will not open the container again
        env.setting.simulator._controller.server.unity_proc.kill()
        with pytest.raises(ThorLost, match=f"1 things are not as before the restart, such as {container.id}"):
            env.world.close(container.id)


def test_a_build_without_the_newer_actions(tmp_path: Path) -> None:
    missing = ("no-action:GetInteractablePoses", "no-action:GetMapViewCameraProperties", "no-action:GetScenesInBuild")
    with thor_env(EPISODES, thor=options(*missing), skills="grounded", render="rgb") as env:
        assert all(play(env, episode)[0] for episode in EPISODES) and top_view(env.world).std() > 5
        assert env.world.restarts == 0


def test_a_variable_that_breaks_every_action_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AI2THOR_VISIBILITY_DISTANCE", "2")
    with no_leaks(), pytest.raises(ConfigError, match="AI2THOR_VISIBILITY_DISTANCE is set.*unset it"):
        simulator().start()


def test_without_images_the_screen_is_not_resized() -> None:
    """A build may wait forever for its screen to change."""
    thor = simulator("no-action:ChangeResolution", headless=True, width=640)
    thor.start()
    assert thor.step("Pass").frame is None
    thor.close()


def test_a_gpu_without_a_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    thor = simulator(gpu=1)  # a GPU number is for CloudRendering only, not for a command
    thor.start(EMPTY_SCENE)
    assert thor.step("Pass").ok
    thor.close()
