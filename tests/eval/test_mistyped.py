"""Commands that compare methods refuse a mistyped setting before they load a model."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from eval import fidelity, recall, retention, sessions
from keep_agent import brain

Command = Callable[..., tuple[int, str, str]]
MISTYPED = [
    (fidelity, "planner=kep", "'keep'"),
    (fidelity, "planner=keep planer=keep", "'planner'"),
    (fidelity, "planner=keep env.skils=grounded", "'env.skills'"),
    (fidelity, "planner=keep prompt.style=link", "'linked'"),
    (fidelity, "planner=keep+memory.recompute.direction=cusal", "'causal'"),
    (recall, "--methods kep", "'keep'"),
    (recall, "--methods keep model=planner-tin", "'planner-tiny'"),
    (recall, "--methods keep memory.groupin.bound=3", "'memory.grouping.bound'"),
    (retention, "--methods h20", "'h2o'"),
    (retention, "--methods h2o memory.retention.grain=tokn", "'token'"),
    (sessions, "--out x.jsonl env.observability=partail", "'partial'"),
    (sessions, "--out x.jsonl +planer=keep", "'planner'"),
]


@pytest.mark.parametrize(("command", "words", "meant"), MISTYPED, ids=[f"{c.__name__} {w}" for c, w, _ in MISTYPED])
def test_what_is_mistyped_loads_no_model(
    command: ModuleType, words: str, meant: str, call: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(brain, "load_model", refuse)
    code, out, err = call(command.main, *words.split())
    assert (code, out, err.count("\n")) == (2, "", 1) and err.startswith("error: ")
    assert f"did you mean {meant}?" in err
