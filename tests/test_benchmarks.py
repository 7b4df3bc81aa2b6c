"""Benchmarks: each runs once with a small size; the GPU benchmark reports failed parts and runs them again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu

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


def test_a_failed_part_is_reported_and_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = iter([3, 0])
    monkeypatch.setattr(gpu, "PARTS", {"laws": lambda folder, device: gpu.Report("## The laws", next(codes))})
    page = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", ["gpu", "--device", "cpu", "--out", str(tmp_path / "out"), "--page", str(page)])
    for code, failed in ((1, True), (0, False), (0, False)):  # the third command does not run the part again
        with pytest.raises(SystemExit) as end:
            gpu.main()
        assert end.value.code == code
        assert ("Failed with exit code 3" in page.read_text()) == failed and "## The laws" in page.read_text()


def test_a_report_contains_output_and_exit_code() -> None:
    done = gpu._run([sys.executable, "-c", "print('why'); raise SystemExit(4)"])
    assert done == gpu.Report("why\n", 4)
