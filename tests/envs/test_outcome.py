"""Outcomes: validation of the flag and the message."""

from __future__ import annotations

from math import nan
from typing import Any

import numpy as np
import pytest

from envs.outcome import Outcome
from keep_agent.errors import ConfigError


@pytest.mark.parametrize("value", ["failed", "false", "", nan, None, 0, 1, [False], {"ok": False}, np.array([True])])
def test_other_values_than_booleans_are_errors(value: Any) -> None:
    with pytest.raises(ConfigError, match="ok=.*give True or False"):
        Outcome(value)


@pytest.mark.parametrize("value", [False, True])
def test_numpys_booleans_are_converted(value: bool) -> None:
    assert Outcome(np.bool_(value)).ok is value


@pytest.mark.parametrize("message", [None, 7, b"no"])
def test_a_message_must_be_a_text(message: Any) -> None:
    with pytest.raises(ConfigError, match="message="):
        Outcome(False, message)
