from __future__ import annotations

from dataclasses import replace

import pytest

from keep_agent.errors import ConfigError
from memory.prompt.layout import Layout
from memory.recompute.first_tokens import FirstTokens
from memory.recompute.none import Nothing
from tests.memory.layouts import make_layout

LAYOUT = make_layout([4, 3, 2, 5], fresh=[2])  # rows 1..4, 5..7, 8..9, 10..14 behind one context row, then the query
QUERY = [15, 16, 17]


def rows(stage: FirstTokens, layout: Layout = LAYOUT) -> list[int]:
    return stage.first(layout, 4).tolist()


def exact(*numbers: int) -> Layout:
    return replace(LAYOUT, placements=tuple(replace(p, exact=n in numbers) for n, p in enumerate(LAYOUT.placements)))


def test_the_first_unit_keeps_its_beginning_where_it_stands_at_the_beginning() -> None:
    assert rows(FirstTokens(2), exact(0)) == [5, 6, 8, 9, 10, 11, *QUERY]
    assert rows(FirstTokens(16), exact(0)) == [*range(5, 18)]
    assert rows(FirstTokens(2)) == [1, 2, 5, 6, 8, 9, 10, 11, *QUERY], "encoded without the context before it"


def test_the_ends_of_all_units() -> None:
    assert rows(FirstTokens(0, 1)) == [4, 7, 8, 9, 14, *QUERY]
    assert rows(FirstTokens(1, 9)) == [*range(1, 18)]


def test_a_fresh_first_unit_is_still_the_first() -> None:
    assert rows(FirstTokens(1), make_layout([2, 2, 2], fresh=[0])) == [1, 2, 3, 5, 7, 8, 9]


def test_nothing_of_exact_units() -> None:
    assert rows(FirstTokens(1, 1), exact(1)) == [1, 4, 8, 9, 10, 14, *QUERY]


def test_without_seams_it_is_full_reuse() -> None:
    assert rows(FirstTokens(0)) == Nothing().first(LAYOUT, 4).tolist()


@pytest.mark.parametrize("knobs", [{"k": -1}, {"last_k": -2}])
def test_bad_knobs_are_sentences(knobs: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(knobs))}=-. is negative"):
        FirstTokens(**knobs)
