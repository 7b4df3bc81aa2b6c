"""What a query tells of a task: what it asks for, and what of it was brought."""

from __future__ import annotations

import pytest

from planners.prompt import Turn, brought, in_short

TAKE, PUT = Turn("pick up plate 3"), Turn("put plate 3 in fridge 1")
DOWN = Turn("put down the plate")


@pytest.mark.parametrize(
    ("turns", "told"),
    [
        ((), []),
        ((TAKE,), []),
        ((TAKE, PUT), ["did", "plate_3"]),
        ((TAKE, Turn("put plate 3 in fridge 1", "it is closed")), []),
        ((TAKE, PUT, TAKE), []),
        ((TAKE, PUT, Turn("pick up plate 3", "it is not there")), ["did", "plate_3"]),
        ((TAKE, PUT, Turn("pick up plate 1"), Turn("put plate 1 in fridge 1"), TAKE), ["did", "plate_1"]),
        ((DOWN, Turn("pick up the plate"), DOWN), ["did", "plate", "plate"]),
    ],
)
def test_what_was_put_down_and_not_taken_again_was_brought(turns: tuple[Turn, ...], told: list[str]) -> None:
    assert brought(turns) == told


def test_an_instruction_whose_goal_was_not_said_is_told_as_it_is() -> None:
    assert in_short("Put two plates away.", "", (TAKE, PUT)) == "Put two plates away."
    assert in_short("Two plates.", "find plate put fridge", (TAKE, PUT)) == "goal find plate put fridge did plate_3"
