"""OpenMP is told how threads wait before torch is imported, and never against the user's choice."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SAID = """{first}
import os, sys
print("torch" in sys.modules, os.environ.get("OMP_WAIT_POLICY"), os.environ.get("GOMP_SPINCOUNT"))
"""
NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
PUBLIC = "from keep_agent import Fact"
COMMAND = "import sys, keep_agent.cli; sys.argv[1:] = ['methods']; keep_agent.cli.main()"
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="GNU's OpenMP waits so on Linux")


def after(first: str, **choices: str) -> str:
    own = {name: value for name, value in os.environ.items() if name not in NAMES}
    script = SAID.format(first=first)
    done = subprocess.run([sys.executable, "-c", script], env=own | choices, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


@linux
@pytest.mark.parametrize(
    "first", ["import eval", "import planners", "import keep_agent.robots", "import benchmarks", PUBLIC, COMMAND]
)
def test_threads_stay_awake_for_some_microseconds(first: str) -> None:
    assert after(first) == "False active 300000"


@pytest.mark.parametrize(
    ("choices", "expected"), [({"OMP_WAIT_POLICY": "passive"}, "passive None"), ({"GOMP_SPINCOUNT": "7"}, "None 7")]
)
def test_the_users_choice_stands(choices: dict[str, str], expected: str) -> None:
    assert after(PUBLIC, **choices) == f"False {expected}"


def test_nothing_is_set_when_torch_has_read_it_already() -> None:
    assert after(f"import torch; {PUBLIC}") == "True None None"
