"""What was in vain is not tried again: skills that changed nothing, and those that led back."""

from __future__ import annotations

from planners.trail import Trail

ALL = ("open", "close", "go", "take", "put")


def play(trail: Trail, *steps: tuple[str, str, str]) -> list[str]:
    """Situations (world, agent) with the skill taken in each; what is promising in the last one."""
    left: list[str] = []
    for world, agent, skill in steps:
        left = list(trail.promising(world, agent, ALL))
        trail.take(skill)
    return left


def without(*skills: str) -> list[str]:
    return [skill for skill in ALL if skill not in skills]


def test_at_first_everything_is_promising() -> None:
    assert play(Trail(), ("w", "here", "go")) == list(ALL)
    assert play(Trail(), ("w", "here", "go"), ("w", "there", "open"), ("w2", "there", "take")) == list(ALL)


def test_what_changed_nothing_is_in_vain_in_that_situation_alone() -> None:
    stuck = [("w", "here", "open"), ("w", "here", "put"), ("w", "here", "go")]
    assert play(Trail(), *stuck) == without("open", "put")
    assert play(Trail(), *stuck, ("w", "there", "open")) == list(ALL)


def test_what_led_back_is_in_vain_while_the_world_is_as_it_was() -> None:
    undone = [("put", "here", "take"), ("held", "here", "put"), ("put", "here", "take"), ("held", "here", "put")]
    assert play(Trail(), *undone, ("put", "here", "go"), ("put", "there", "go")) == without("take")
    assert play(Trail(), *undone, ("put", "here", "go"), ("new", "there", "go")) == list(ALL)


def test_where_it_went_to_no_end_it_does_not_go_again() -> None:
    circle = [("w", "a", "go"), ("w", "b", "open"), ("w", "a", "go"), ("w", "b", "take")]
    assert play(Trail(), *circle) == without("open", "go")


def test_something_is_always_left() -> None:
    assert play(Trail(), *[("w", "here", skill) for skill in ALL], ("w", "here", "go")) == list(ALL)
