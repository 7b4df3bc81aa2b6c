"""``keep-agent``: its commands, version, and exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import keep_agent
from keep_agent.cli import main
from keep_agent.guard import BAD_INPUT, INTERRUPTED, guarded


def test_methods_are_listed_with_stages(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["keep-agent", "methods"])
    main()
    lines = capsys.readouterr().out.splitlines()
    keep = next(line for line in lines if line.startswith("│ keep "))
    assert all(word in keep for word in ("Embedding", "StaticDynamic", "MultiHop", "LayerBalanced", "2602.23592"))
    assert "approximate" in keep
    assert any("full_reuse" in line and "Nothing" in line for line in lines)
    assert any("prefix_cache" in line and "exact" in line for line in lines)


def test_the_version_is_the_packages(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["keep-agent", "--version"])
    with pytest.raises(SystemExit):
        main()
    assert keep_agent.__version__ in capsys.readouterr().out


def test_sigterm_is_an_interruption() -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert guarded(lambda: os.kill(os.getpid(), signal.SIGTERM)) == INTERRUPTED
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_full_standard_output_is_one_sentence() -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "keep_agent.cli", "methods"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == BAD_INPUT and done.stderr.startswith("error: "), done.stderr
    assert "No space left" in done.stderr and done.stderr.count("\n") == 1
