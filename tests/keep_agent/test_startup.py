"""Start-up: hidden packages are refused with a sentence that says which, where, and what to do."""

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
    ("-c", "from keep_agent import Agent"),
    ("-c", MAKE),
    ("-m", "eval.alfred"),
    ("-m", "keep_agent.cli"),
    ("-m", "keep_agent.robots.ros2"),
]


def start(cwd: Path, *command: str, path: str = "") -> subprocess.CompletedProcess[str]:
    places = os.pathsep.join(filter(None, (path, str(ROOT))))
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": places}
    )


@pytest.mark.parametrize("command", STARTS, ids=[words[1] for words in STARTS])
@pytest.mark.parametrize("file", ["memory.py", "envs/__init__.py", "planners/__init__.py", "configs.py"])
def test_a_package_of_the_same_name_is_named_with_its_place(command: Sequence[str], file: str, tmp_path: Path) -> None:
    own = tmp_path / file
    own.parent.mkdir(exist_ok=True)
    own.write_text("")
    done = start(tmp_path, *command)
    said = done.stderr.splitlines()[-1]
    assert done.returncode != 0 and "No module named" not in done.stderr
    assert ("Traceback" in done.stderr) == (command[0] == "-c")  # an import raises, a command ends
    assert command[0] == "-c" or (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert str(own) in said and "is not keep-agent's" in said and "-P" in said and "keep-eval-alfred" in said


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
        ([P, "-c", "import keep_agent"], ["-c"], False),
        ([P], [""], False),
        ([P, "theirs.py"], [], False),
    ],
)
def test_only_our_own_commands_end_the_process(original: list[str], arguments: list[str], expected: bool) -> None:
    assert is_command(original, arguments) is expected


def test_one_that_was_imported_before_is_found_too(tmp_path: Path) -> None:
    (tmp_path / "memory.py").write_text("")
    code = "import sys, memory; sys.path.remove(''); from keep_agent import Fact"
    assert f"found at {tmp_path / 'memory.py'} is not keep-agent's" in start(tmp_path, "-c", code).stderr


def test_what_the_sentence_advises_works(tmp_path: Path) -> None:
    (tmp_path / "memory.py").write_text("")
    assert start(tmp_path, "-P", "-c", "from keep_agent import Fact; import memory.segments.segment").returncode == 0


def test_folders_that_are_no_packages_and_modules_that_come_later_do_no_harm(tmp_path: Path) -> None:
    for name in ("envs", "configs", "eval", "tests"):
        (tmp_path / name).mkdir()
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "memory.py").write_text("")
    code = "import sys; sys.path.append('later'); import eval, envs.fact, memory.segments.segment"
    done = start(tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr
