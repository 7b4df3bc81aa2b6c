"""Benchmark of text matching: common prefix of a stored and a new text, and growth of a text turn by turn."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from memory.agents.text_match import TokenText, match
from tests.memory.agents.coders import coder_of

CHARACTERS = 100_000
LINE = "the mug is in the fridge\n"


@pytest.mark.parametrize("tail", ["", "and more\n"])
@pytest.mark.parametrize("share", [1.0, 0.9])
def test_match(benchmark: BenchmarkFixture, share: float, tail: str) -> None:
    """Floor: every character is read once, which takes about 0.02 to 0.1 ms."""
    text = (LINE * (CHARACTERS // len(LINE) + 1))[:CHARACTERS]
    stored = TokenText.of(text, coder_of("bytes"))
    same = round(share * CHARACTERS)
    benchmark(match, stored, text[:same] + tail + "x" * (CHARACTERS - same))


@pytest.mark.parametrize("turns", [1_000, 4_000])
def test_growth(benchmark: BenchmarkFixture, turns: int) -> None:
    """Measure linear growth: four times as many pieces should take four times as long."""
    coder = coder_of("bytes")
    piece, ids = "the mug\n", coder.encode("the mug\n").ids

    def grow() -> None:
        text = TokenText("any")
        for _ in range(turns):
            text.append(piece, coder)
            text.extend(ids, coder)

    benchmark.pedantic(grow, rounds=5)
