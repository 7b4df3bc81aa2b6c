"""Benchmarks of the stages: each runs once with a small size, so that a broken benchmark is noticed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOPICS = sorted(path.name for path in (ROOT / "benchmarks").glob("bench_*.py"))
LARGE = "10000 or whole_house"  # slow cases of the same code


class Outcomes:
    """Counter of passed tests."""

    def __init__(self) -> None:
        self.passed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.passed += report.when == "call" and report.passed


@pytest.mark.slow
@pytest.mark.parametrize("topic", TOPICS)
def test_benchmarks_run(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = Outcomes()
    names = ["-o", "python_files=bench_*.py", "-k", f"not ({LARGE})", "-p", "no:cacheprovider"]
    code = pytest.main([str(ROOT / "benchmarks" / topic), f"--rootdir={ROOT}", *names], [outcomes])
    assert code == 0, capsys.readouterr().out
    assert outcomes.passed


@pytest.mark.slow
def test_kills_and_damage_cause_no_silent_loss() -> None:
    command = [sys.executable, "-m", "benchmarks.damage", "--kills", "8", "--damages", "200"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_is_a_benchmark_for_every_topic() -> None:
    assert {"bench_grouping.py", "bench_retrieval.py", "bench_load.py"} <= set(TOPICS)
