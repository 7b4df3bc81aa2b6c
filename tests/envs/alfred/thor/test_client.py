"""Replies of AI2-THOR with unusable values."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from envs.alfred.thor.client import Thor
from envs.alfred.thor.errors import ThorAnswer
from envs.alfred.thor.options import ThorOptions


class Simulator:
    """Answers every action with the same flag."""

    def __init__(self, flag: Any) -> None:
        self._flag = flag

    def step(self, action: str) -> Any:
        metadata = {"lastActionSuccess": self._flag, "errorMessage": "", "actionReturn": None, "objects": []}
        return SimpleNamespace(metadata=metadata, third_party_camera_frames=[], frame=None)


@pytest.mark.parametrize("flag", ["false", "", None, 0, 1, [True]])
def test_a_success_flag_must_be_boolean(flag: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    thor = Thor(ThorOptions())
    monkeypatch.setattr(thor, "_controller", Simulator(flag))
    monkeypatch.setattr(thor, "close", lambda: None)
    with pytest.raises(ThorAnswer, match="lastActionSuccess=.*neither true nor false"):
        thor.step("Pass")
