"""Start of a process: packages of other projects with our names are refused, and OpenMP threads spin."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from keep_agent.startup import is_command
from tests.test_imports import ROOT

MAKE = "import gymnasium; gymnasium.make('keep_agent:Alfred-v0')"
STARTS = [
    ("-c", "from keep_agent import Agent"), ("-c", MAKE), ("-m", "eval.alfred"), ("-m", "keep_agent.cli"),
    ("-m", "keep_agent.robots.ros2"),
]  # fmt: skip


def start(cwd: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True, env=env)


@pytest.mark.parametrize("command", STARTS, ids=[words[1] for words in STARTS])
@pytest.mark.parametrize("file", ["memory.py", "envs/__init__.py", "planners/__init__.py", "configs.py"])
def test_a_package_of_the_same_name_is_named_with_its_place(command: Sequence[str], file: str, tmp_path: Path) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    done = start(tmp_path, *command)
    message = done.stderr.splitlines()[-1]
    assert done.returncode != 0 and "No module named" not in done.stderr
    assert ("Traceback" in done.stderr) == (command[0] == "-c")  # an import raises, a command ends
    assert command[0] == "-c" or (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert all(text in message for text in (str(path), "is not keep-agent's", "-P", "keep-eval-alfred"))


P = "/usr/bin/python3"


@pytest.mark.parametrize(
    ("original", "arguments", "expected"),
    [
        ([P, "-m", "keep_agent.cli", "methods"], ["-m", "methods"], True),
        ([P, "-m", "eval.alfred"], ["/ours/eval/alfred.py"], True),
        ([P, "-Wignore", "-mplanners.train", "--data", "x"], ["-m", "--data", "x"], True),
        ([P, "-Bm", "eval.suite"], ["-m"], True),
        ([P, "/venv/bin/keep-eval-alfred", "a"], ["/venv/bin/keep-eval-alfred", "a"], True),
        ([P, "-m", "pytest", "keep_agent.cli"], ["-m", "keep_agent.cli"], False),
        ([P, "-m", "theirs.eval"], ["-m"], False),
        ([P, "eval.py", "-m", "eval.alfred"], ["eval.py", "-m", "eval.alfred"], False),
        ([P, "-c", "import keep_agent"], ["-c"], False), ([P], [""], False), ([P, "theirs.py"], [], False),
    ],
)  # fmt: skip
def test_only_own_commands_end_the_process(original: list[str], arguments: list[str], expected: bool) -> None:
    assert is_command(original, arguments) is expected


def test_a_package_that_was_imported_before_is_found(tmp_path: Path) -> None:
    (tmp_path / "memory.py").write_text("")
    code = "import sys, memory; sys.path.remove(''); from keep_agent import Fact"
    assert f"found at {tmp_path / 'memory.py'} is not keep-agent's" in start(tmp_path, "-c", code).stderr


def test_the_remedy_works(tmp_path: Path) -> None:
    (tmp_path / "memory.py").write_text("")
    assert start(tmp_path, "-P", "-c", "from keep_agent import Fact; import memory.segments.segment").returncode == 0


def test_other_folders_and_later_modules_are_no_packages_of_ours(tmp_path: Path) -> None:
    for name in ("envs", "configs", "eval", "tests"):
        (tmp_path / name).mkdir()
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "memory.py").write_text("")
    code = "import sys; sys.path.append('later'); import eval, envs.fact, memory.segments.segment"
    done = start(tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr


PRINT = """{first}
import os, sys
print("torch" in sys.modules, os.environ.get("OMP_WAIT_POLICY"), os.environ.get("GOMP_SPINCOUNT"))
"""
NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
PUBLIC = "from keep_agent import Fact"
COMMAND = "import sys, keep_agent.cli; sys.argv[1:] = ['methods']; keep_agent.cli.main()"
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="GNU's OpenMP waits so on Linux")


def openmp_after(first: str, **choices: str) -> str:
    """Return whether torch is loaded, and the settings of OpenMP, after a statement."""
    inherited = {name: value for name, value in os.environ.items() if name not in NAMES}
    command, env = [sys.executable, "-c", PRINT.format(first=first)], inherited | choices
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


@linux
@pytest.mark.parametrize(
    "first", ["import eval", "import planners", "import keep_agent.robots", "import benchmarks", PUBLIC, COMMAND]
)
def test_openmp_threads_spin(first: str) -> None:
    assert openmp_after(first) == "False active 300000"


@pytest.mark.parametrize(
    ("choices", "expected"), [({"OMP_WAIT_POLICY": "passive"}, "passive None"), ({"GOMP_SPINCOUNT": "7"}, "None 7")]
)
def test_a_users_setting_of_openmp_has_priority(choices: dict[str, str], expected: str) -> None:
    assert openmp_after(PUBLIC, **choices) == f"False {expected}"


def test_openmp_is_not_set_after_torch() -> None:
    assert openmp_after(f"import torch; {PUBLIC}") == "True None None"
