"""Expressions in a game's grammar: the allowed operations are evaluated, all others are refused and never run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from envs.alfworld.engine import read_expression
from keep_agent.errors import DataError


@dataclass
class Thing:
    name: str | None
    id: str = "mug_1"
    indefinite: str = "a"
    synonyms: Any = ()

    def load(self) -> str:
        return "loaded"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("o.name", "mug 1"), ("o.indefinite + ' ' + o.name", "a mug 1"), ("r.name or r.id", "mug_1"),
        (" o.name ", "mug 1"), ("'text'", "text"),
    ],
)  # fmt: skip
def test_allowed_expressions_are_evaluated(text: str, value: str) -> None:
    assert read_expression(text, {"o": Thing("mug 1"), "r": Thing(None)}) == value


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('ls')", "open('x', 'w')", "o.__class__", "o.load", "o.load()", "o.synonyms",
        "o.name.format", "context['variables']", "self.expression", "[x for x in ()]", "f'{o.name}'", "'a' * 10",
        "1 + 1", "lambda: 1", "unknown.name", "o.weight", "o.name +", "(" * 200 + ")" * 200,
        "o.name" + " + o.name" * 200,
    ],
)  # fmt: skip
def test_other_expressions_are_refused(text: str) -> None:
    with pytest.raises(DataError, match="restore the game's file"):
        read_expression(text, {"o": Thing("mug 1")})
