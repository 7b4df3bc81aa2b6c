"""Mistyped values of a stage: commands that compare methods refuse them before they load a model."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from eval.fidelity import __main__ as fidelity
from eval.retention import __main__ as retention
from keep_agent.config import planner_factory

Command = Callable[..., tuple[int, str, str]]
MISTYPED = [
    (fidelity, "planner=keep+memory.recompute.direction=cusal", "'causal'"),
    (retention, "--methods x:h2o+memory.retention.grain=tokn", "'token'"),
]


@pytest.mark.parametrize(("command", "words", "meant"), MISTYPED, ids=[f"{c.__name__} {w}" for c, w, _ in MISTYPED])
def test_a_mistyped_value_loads_no_model(
    command: ModuleType, words: str, meant: str, call: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(planner_factory, "load_model", refuse)
    code, out, err = call(command.main, *words.split())
    assert (code, out, err.count("\n")) == (2, "", 1) and err.startswith("error: ")
    assert f"did you mean {meant}?" in err
