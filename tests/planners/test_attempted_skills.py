"""Trails of planners: what was in vain is not tried again, skills that changed nothing, and those that led back."""

from __future__ import annotations

from planners.attempted_skills import MOST, Trail


def vain(*steps: tuple[str, str, str]) -> set[str]:
    """Situations (world, agent) with the skill taken in each; what is in vain in the last one."""
    trail, found = Trail(), set()
    for world, agent, skill in steps:
        found = trail.arrive(world, agent)
        trail.take(skill)
    return found


def test_at_first_nothing_is_in_vain() -> None:
    assert vain(("w", "here", "go")) == set()
    assert vain(("w", "here", "go"), ("w", "there", "open"), ("w2", "there", "take")) == set()


def test_what_changed_nothing_is_in_vain_in_that_situation_alone() -> None:
    stuck = [("w", "here", "open"), ("w", "here", "put"), ("w", "here", "go")]
    assert vain(*stuck) == {"open", "put"}
    assert vain(*stuck, ("w", "there", "open")) == set()
    assert vain(*stuck, ("w2", "here", "open")) == set()


def test_what_led_back_is_in_vain_while_the_world_is_as_it_was() -> None:
    undone = [("put", "here", "take"), ("held", "here", "put"), ("put", "here", "take"), ("held", "here", "put")]
    assert vain(*undone, ("put", "here", "go"), ("put", "there", "go")) == {"take"}
    assert vain(*undone, ("put", "here", "go"), ("new", "there", "go")) == set()


def test_where_it_went_to_no_end_it_does_not_go_again() -> None:
    assert vain(("w", "a", "go"), ("w", "b", "open"), ("w", "a", "go"), ("w", "b", "take")) == {"open", "go"}


def test_what_nothing_is_known_of_was_not_in_vain() -> None:
    trail = Trail()
    trail.arrive("w", "here")
    assert trail.arrive("w", "here") == set()  # asked twice, nothing taken


def test_a_trail_is_bounded_and_can_be_copied() -> None:
    trail = Trail()
    for step in range(3 * MOST):
        trail.arrive(f"world {step // 2}", "here")  # every second skill is in vain
        trail.take("open")
    assert len(trail._been) == len(trail._vain) == MOST
    before = trail.copy()
    last = f"world {3 * MOST // 2 - 1}"
    assert trail.arrive(last, "here") == before.arrive(last, "here") == {"open"}
    trail.take("wipe")
    trail.arrive(last, "here")
    assert before.arrive(last, "here") == {"open"}


def test_what_is_in_vain_where_the_agent_comes_again_and_again_is_not_forgotten() -> None:
    trail = Trail()
    trail.arrive("home", "here")
    trail.take("open")
    for number in range(MOST + 5):
        assert trail.arrive("home", "here") == {"open"}
        for _ in range(2):
            trail.arrive(f"world {number}", "here")
            trail.take("wipe")
