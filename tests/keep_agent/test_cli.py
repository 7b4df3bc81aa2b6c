from __future__ import annotations

import os
import signal
import sys

import pytest

import keep_agent
from keep_agent.cli import main
from keep_agent.guard import INTERRUPTED, guarded


def test_the_methods_are_listed_with_their_stages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_a_polite_kill_is_an_interruption() -> None:
    """As Ctrl-C is: whoever holds a simulator lets go of it, and a run says how to go on."""
    before = signal.getsignal(signal.SIGTERM)
    assert guarded(lambda: os.kill(os.getpid(), signal.SIGTERM)) == INTERRUPTED
    assert signal.getsignal(signal.SIGTERM) is before
