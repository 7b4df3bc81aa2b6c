"""What matching takes: no time beside a pass, and no more a character for longer texts."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from memory.match import TokenText, match
from tests.memory.coders import coder_of


def seconds(work: Callable[[], object], times: int = 5) -> float:
    """The best of some runs: others use the machine, too."""
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def long_text(characters: int) -> TokenText:
    text = ("the mug is in the fridge\n" * (characters // 25 + 1))[:characters]
    return TokenText.of(text, coder_of("bytes"))


@pytest.mark.parametrize("tail", ["", "and more\n"])
@pytest.mark.parametrize("shown", [1.0, 0.9])
def test_a_hundred_thousand_characters_are_compared_in_no_time(shown: float, tail: str) -> None:
    stored = long_text(100_000)
    text = stored.text[: round(shown * 100_000)] + tail + "x" * round((1 - shown) * 100_000)
    assert seconds(lambda: match(stored, text), 20) < 0.005  # it takes some 0.02 to 0.1 ms


def test_a_text_grows_at_the_same_pace() -> None:
    """Four times as many pieces take about four times as long, not sixteen."""
    coder = coder_of("bytes")
    piece, ids = "the mug\n", coder.encode("the mug\n").ids

    def grow(turns: int) -> None:
        grown = TokenText("any")
        for _ in range(turns):
            grown.append(piece, coder)
            grown.extend(ids, coder)

    assert seconds(lambda: grow(4000), 3) < 9 * seconds(lambda: grow(1000), 3)
