"""Texts with tokens in files: read as they were written, or refused."""

from __future__ import annotations

import json

import pytest

from keep_agent.errors import DataError
from memory.agents.text_match import TokenText, match
from tests.memory.agents.coders import ALL, SENTENCES, coder_of
from tests.memory.agents.splices import in_pieces


@ALL
def test_it_survives_a_file(name: str) -> None:
    stored = in_pieces("".join(SENTENCES[:3]) + "🙂 é\n", [0.3, 0.7], name)
    back = TokenText.from_json(json.loads(json.dumps(stored.to_json())))
    assert back.to_json() == stored.to_json()
    assert match(back, stored.text + "more") == match(stored, stored.text + "more")
    back.append("more", coder_of(name))
    assert back.ids[: len(stored.ids)] == stored.ids and back.text == stored.text + "more"


@pytest.mark.parametrize(
    "change",
    [
        {"ids": [1]}, {"ends": [3, 2]}, {"ends": [1, 9]}, {"ends": [-1, 2]}, {"start": 3}, {"start": 1}, {"text": None},
        {"ids": [1, "2"]}, {"ids": None}, {"seams": "none"}, {"start": True}, {"start": -1},
        {"tokenizer": 1},
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused(change: dict[str, object]) -> None:
    good = {"text": "ab", "ids": [1, 2], "ends": [1, 2], "start": 0, "seams": "any", "tokenizer": "a"}
    assert TokenText.from_json(good).to_json() == good
    with pytest.raises(DataError, match="remove"):
        TokenText.from_json(good | change)
