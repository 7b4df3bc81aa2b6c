"""The GPU benchmark: a part whose command failed is told on the page, and tried again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import gpu


def test_a_part_that_failed_is_told_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = iter([3, 0])
    monkeypatch.setattr(gpu, "PARTS", {"laws": lambda folder, device: gpu.Report("## The laws", next(codes))})
    page = tmp_path / "page.md"
    monkeypatch.setattr(sys, "argv", ["gpu", "--device", "cpu", "--out", str(tmp_path / "out"), "--page", str(page)])
    for code, told in ((1, True), (0, False), (0, False)):  # the third time it is not run: there is no third code
        with pytest.raises(SystemExit) as end:
            gpu.main()
        assert end.value.code == code
        assert ("Failed with exit code 3" in page.read_text()) == told and "## The laws" in page.read_text()


def test_what_a_command_printed_comes_with_its_exit_code() -> None:
    done = gpu._run([sys.executable, "-c", "print('why'); raise SystemExit(4)"])
    assert done == gpu.Report("why\n", 4)
