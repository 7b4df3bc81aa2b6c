"""Replies of AI2-THOR: success flags and frames."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ai2thor.server import Event

from envs.alfred.thor.client import Thor, _reply
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


def test_frames_of_additional_cameras_have_three_channels() -> None:
    metadata = {
        "screenWidth": 4, "screenHeight": 3, "lastActionSuccess": True, "errorMessage": "", "actionReturn": None,
    }  # fmt: skip
    event = Event(metadata)
    event.add_third_party_camera_image(bytes(4 * 3 * 4))
    assert _reply(event).third_party.shape == (3, 4, 3) and np.ndim(event.third_party_camera_frames[-1]) == 3
