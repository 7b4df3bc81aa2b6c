"""Multi-process runs: the same results as a run of one process, even if workers die."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from eval import alfred, wah
from eval.workers import supervisor
from keep_agent.guard import BAD_INPUT, INTERRUPTED
from keep_agent.rollout.run_folder import EPISODES, RunFolder
from tests.envs.alfred.thor.leftovers import children, runs
from tests.eval.workers.runs import Command, after_commits, assert_done, assert_refused, assert_same, pictures, the_run
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[3]
RANDOM = ("planner=random", "eval.episodes=12", "env.skills=grounded")
TWO = "eval.workers=2"


def kill_workers() -> None:
    for process in multiprocessing.active_children():
        os.kill(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("world", [alfred, wah])
def test_two_processes_give_the_results_of_one(call: Command, world: Any) -> None:
    for planner in ("expert", "random"):
        setting = f"planner={planner}", "eval.episodes=6", "env.stream=2"
        assert_done(call(world.main, *setting, f"eval.out=one_{planner}"))
        assert_done(call(world.main, *setting, f"eval.out=two_{planner}", TWO))
        assert_same(the_run(f"two_{planner}"), the_run(f"one_{planner}"))
    assert not multiprocessing.active_children()


def test_a_model_decides_the_same_in_two_processes(call: Command, tiny_model: Path) -> None:
    setting = (
        "planner=keep", f"model={tiny_model}", "prompt.encoder=hashed", "prompt.style=linked", "env.skills=grounded",
        "env.observability=partial", "env.max_steps=5", "eval.episodes=3", "eval.threads=1",
    )  # fmt: skip
    assert_done(call(alfred.main, *setting, "eval.out=one"))
    assert_done(call(alfred.main, *setting, "eval.out=two", TWO))
    assert_same(the_run("two"), the_run("one"))


def test_workers_return_pictures(call: Command) -> None:
    setting = "planner=random", "env.backend=thor", "env.render=rgb", "env.max_steps=3", "eval.episodes=2"
    assert_done(call(alfred.main, *setting, "eval.out=one"))
    assert_done(call(alfred.main, *setting, "eval.out=two", TWO))
    assert len(pictures(the_run("two"))) > 2
    assert_same(the_run("two"), the_run("one"))


def test_killed_workers_are_replaced(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    call(alfred.main, *RANDOM, "eval.out=one")
    after_commits(monkeypatch, 3, kill_workers)
    assert_done(call(alfred.main, *RANDOM, TWO, "eval.out=two"))
    assert_same(the_run("two"), the_run("one"))


def test_a_run_whose_workers_keep_dying_can_be_resumed(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    call(alfred.main, *RANDOM, "eval.out=one")
    with monkeypatch.context() as patch:
        patch.setattr(supervisor, "MAX_DEATHS", 1)
        after_commits(patch, 3, kill_workers)
        code, _, err = call(alfred.main, *RANDOM, TWO, "eval.out=two")
    folder = the_run("two")
    assert code == BAD_INPUT and err.count("\n") == 1 and "SIGKILL" in err and f"eval.resume={folder.resolve()}" in err
    assert 3 <= len(RunFolder.read(folder)) < 12
    assert_done(call(alfred.main, f"eval.resume={folder}", "eval.workers=3"))
    assert_same(folder, the_run("one"))


def test_a_run_of_one_process_is_resumed_with_two(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    call(alfred.main, *RANDOM, "eval.out=one")
    with monkeypatch.context() as patch:
        after_commits(patch, 3, interrupt)
        assert call(alfred.main, *RANDOM, "eval.out=two")[0] == INTERRUPTED
    assert_done(call(alfred.main, f"eval.resume={the_run('two')}", TWO))
    assert_same(the_run("two"), the_run("one"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("planner=keep", "model=/no/where"), ["/no/where"]),
        (("planner=random", "env.split=wizard"), ["wizard", "train, valid, test"]),
        (("planner=random", "eval.workers=0"), ["eval.workers=0", "from 1"]),
        (("planner=random", "eval.launcher=slurm"), ["eval.launcher='slurm'", "local, ray"]),
    ],
)
def test_an_error_in_a_worker_is_one_line(call: Command, arguments: tuple[str, ...], words: list[str]) -> None:
    assert_refused(call(alfred.main, TWO, *arguments), *words)
    assert not Path("outputs").exists()
    assert not multiprocessing.active_children()


def test_a_simulator_refuses_several_workers(call: Command) -> None:
    code, _, err = call(wah.main, TWO, "planner=random", "env.simulator=http://localhost:1")
    assert code == BAD_INPUT and "env.simulator=http://localhost:1" in err and "eval.workers=1" in err


ENDLESS_RUN = """
from eval import alfred
from eval.workers.processes import ProcessPool

assign = ProcessPool.assign
ProcessPool.assign = lambda pool, worker, index: assign(pool, worker, index) if index < 50 else None
alfred.main()
"""


@pytest.mark.usefixtures("hears_interrupts")
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux to list child processes")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_no_process_outlives_its_run(name: str, call: Command, tmp_path: Path) -> None:
    """SIGINT is sent to the whole process group, as Ctrl-C does; the other signals to the main process alone."""
    setting = *RANDOM[::2], "eval.episodes=100"
    command = [sys.executable, "-c", ENDLESS_RUN, *setting, TWO, f"eval.out={tmp_path / 'two'}"]
    run = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stdout=subprocess.PIPE, text=True)
    while not any(file.stat().st_size for file in tmp_path.glob(f"two/*/{EPISODES}")) and run.poll() is None:
        time.sleep(0.01)
    started = children(run.pid)
    assert len(started) >= 2
    (os.killpg if name == "SIGINT" else os.kill)(run.pid, getattr(signal, name))
    output = run.communicate()[0]
    assert run.returncode == (-signal.SIGKILL if name == "SIGKILL" else INTERRUPTED)
    until(lambda: not any(map(runs, started)))
    folder = the_run(tmp_path / "two")
    assert name == "SIGKILL" or f"eval.resume={folder}" in output.replace("\n", "")
    assert_done(call(alfred.main, f"eval.resume={folder}", "eval.workers=1"))
    assert [result.index for result in RunFolder.read(folder)] == list(range(100))
