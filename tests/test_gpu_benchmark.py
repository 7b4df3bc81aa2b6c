"""GPU benchmark: the page reports a part whose command failed, and the next command runs it again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import gpu


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
