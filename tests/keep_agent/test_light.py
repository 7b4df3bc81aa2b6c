"""Help, lists and refusals of mistyped settings: none of them loads torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module

from keep_agent.brain import make_method
from keep_agent.cli import EXACT
from tests.test_imports import ROOT

RUN = """
import runpy, sys
module, *sys.argv[1:] = sys.argv[1:]
try:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
finally:
    sys.stderr.write(f"torch: {'torch' in sys.modules}")
"""


def run(module: str, *arguments: str, cwd: Path) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of ``python -m``, which ends with whether it loaded torch."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, module, *arguments], cwd=cwd, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("--help", "methods"),
        ("methods", "staticdynamic"),
        ("methods --help", "List the memory methods"),
        ("phases", "handover"),
        ("phases --help", "scenario"),
        ("serve --help", "KEY=VALUE"),
        ("token --help", "token"),
        ("view --help", "RUN"),
    ],
)
def test_help_and_lists_load_no_torch(words: str, shown: str, tmp_path: Path) -> None:
    code, out, err = run("keep_agent.cli", *words.split(), cwd=tmp_path)
    assert (code, err) == (0, "torch: False") and shown.lower() in out.replace("\n", "").lower()


MISTYPED = [
    ("eval.alfred", "planer=keep", "'planner'"),
    ("eval.alfred", "+planer=keep", "'planner'"),
    ("eval.alfred", "++env.skils=grounded", "'env.skills'"),
    ("eval.alfred", "env.skils=grounded", "'env.skills'"),
    ("eval.alfred", "env.skills=grouded", "'grounded'"),
    ("eval.alfred", "eval.episodez=3", "'eval.episodes'"),
    ("eval.alfred", "planner=kep", "'keep'"),
    ("eval.alfred", "prompt.style=link", "'linked'"),
    ("eval.alfred", "model=planner-tin", "'planner-tiny'"),
    ("eval.alfred", "memory/recompute=mult_hop", "'multi_hop'"),
    ("eval.alfred", "env.frames=true", "'eval.frames'"),
    ("eval.wah", "env.rules=strickt", "'strict'"),
    ("eval.alfworld", "env.scored=finaly", "'final'"),
    ("eval.latency", "latency.planer=[keep]", "'latency.planners'"),
    ("eval.locomo", "planner=kep", "'keep'"),
    ("eval.suite", "semantik", "'semantic'"),
    ("eval.suite", "blocks --data . model=planner-tin", "'planner-tiny'"),
    ("keep_agent.cli", "phases handover model=planner-tin", "'planner-tiny'"),
    ("keep_agent.cli", "phases handovr", "'handover'"),
    ("keep_agent.cli", "serve --port 0 planer=keep", "'planner'"),
    ("keep_agent.cli", "serve --port 0 prompt.style=link", "'linked'"),
    ("keep_agent.cli", "serve --port 0 model=planner-tin", "'planner-tiny'"),
]


@pytest.mark.parametrize(("module", "words", "meant"), MISTYPED, ids=[f"{m} {w}" for m, w, _ in MISTYPED])
def test_what_is_mistyped_is_refused_with_what_was_meant(module: str, words: str, meant: str, tmp_path: Path) -> None:
    code, out, err = run(module, *words.split(), cwd=tmp_path)
    assert code == 2 and out == "" and err.startswith("error: ") and err.endswith("\ntorch: False")
    assert f"did you mean {meant}?" in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_methods_says_of_each_what_the_method_itself_says() -> None:
    with initialize_config_module("configs", version_base="1.3"):
        for path in (ROOT / "configs" / "memory").glob("*.yaml"):
            method = make_method(compose("alfred", [f"memory={path.stem}"]).memory)
            assert method.capabilities.exact == (path.stem in EXACT), path.stem
