"""How threads wait is said before torch is there, and never against the user's word."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SAID = """
import os, sys, {first}
print("torch" in sys.modules, os.environ.get("OMP_WAIT_POLICY"), os.environ.get("GOMP_SPINCOUNT"))
"""


def after_import(first: str, **said: str) -> str:
    own = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    script = SAID.format(first=first)
    done = subprocess.run([sys.executable, "-c", script], env=own | said, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="GNU's OpenMP waits so on Linux")
@pytest.mark.parametrize("first", ["keep_agent", "eval"])
def test_threads_stay_awake_for_some_microseconds(first: str) -> None:
    assert after_import(first) == "False active 300000"


@pytest.mark.parametrize(
    ("said", "found"), [({"OMP_WAIT_POLICY": "passive"}, "passive None"), ({"GOMP_SPINCOUNT": "7"}, "None 7")]
)
def test_the_users_word_stands(said: dict[str, str], found: str) -> None:
    assert after_import("keep_agent", **said) == f"False {found}"
