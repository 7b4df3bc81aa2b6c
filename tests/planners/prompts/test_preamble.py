from __future__ import annotations

import re

import pytest

from keep_agent.errors import ConfigError
from memory.engine.models.tokenizer import load_tokenizer
from planners.bundled import BUNDLED
from planners.prompts.preamble import FACTS, MOST, preamble
from planners.prompts.styles import STYLES


@pytest.mark.parametrize("style", STYLES)
def test_a_preamble_has_a_line_per_fact(style: str) -> None:
    assert preamble(style, 0) == ""
    text = preamble(style, MOST)
    assert text.count("\n") == MOST and set(preamble(style, 5).splitlines()) <= set(text.splitlines())


def test_more_lines_than_there_are_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"prompt.preamble={MOST + 1}"):
        preamble("plain", MOST + 1)


def test_examples_name_nothing_that_a_house_has() -> None:
    names = (token for token in load_tokenizer(str(BUNDLED)).get_vocab() if re.fullmatch(r"[a-z]+_\d+", token))
    types = {name.rpartition("_")[0] for name in names}  # planner-tiny has a token for each thing of the worlds
    assert len(types) > 100 and not types & {fact.type for fact in FACTS}
