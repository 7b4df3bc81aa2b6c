from __future__ import annotations

from planners.kv_planner import MAX_SITUATIONS, AttemptedSkills


def futile(*steps: tuple[str, str, str]) -> set[str]:
    """Replay situations (world, agent) with the skill executed in each; return the futile skills of the last one."""
    attempts, skills = AttemptedSkills(), set()
    for world, agent, skill in steps:
        skills = attempts.futile(world, agent)
        attempts.record(skill)
    return skills


def test_no_skill_is_futile_before_it_is_executed() -> None:
    attempts = AttemptedSkills()
    assert [attempts.futile("w", "here") for _ in range(2)] == [set()] * 2
    assert futile(("w", "here", "go")) == set()
    assert futile(("w", "here", "go"), ("w", "there", "open"), ("w2", "there", "take")) == set()


def test_a_skill_without_effect_is_futile_in_its_situation_only() -> None:
    stuck = [("w", "here", "open"), ("w", "here", "put"), ("w", "here", "go")]
    assert futile(*stuck) == {"open", "put"} and futile(*stuck, ("w", "there", "open")) == set()
    assert futile(*stuck, ("w2", "here", "open")) == set()


def test_a_skill_that_led_back_is_futile_while_the_world_stays_the_same() -> None:
    undone = [("put", "here", "take"), ("held", "here", "put"), ("put", "here", "take"), ("held", "here", "put")]
    assert futile(*undone, ("put", "here", "go"), ("put", "there", "go")) == {"take"}
    assert futile(*undone, ("put", "here", "go"), ("new", "there", "go")) == set()
    assert futile(("w", "a", "go"), ("w", "b", "open"), ("w", "a", "go"), ("w", "b", "take")) == {"open", "go"}


def test_the_record_is_bounded_and_can_be_copied() -> None:
    attempts = AttemptedSkills()
    for step in range(3 * MAX_SITUATIONS):
        attempts.futile(f"world {step // 2}", "here")  # every second skill is futile
        attempts.record("open")
    assert len(attempts._futile) == MAX_SITUATIONS
    before = attempts.copy()
    last = f"world {3 * MAX_SITUATIONS // 2 - 1}"
    assert attempts.futile(last, "here") == before.futile(last, "here") == {"open"}
    attempts.record("wipe")
    attempts.futile(last, "here")
    assert before.futile(last, "here") == {"open"}


def test_futile_skills_of_a_recurring_situation_are_not_evicted() -> None:
    attempts = AttemptedSkills()
    attempts.futile("home", "here")
    attempts.record("open")
    for number in range(MAX_SITUATIONS + 5):
        assert attempts.futile("home", "here") == {"open"}
        for _ in range(2):
            attempts.futile(f"world {number}", "here")
            attempts.record("wipe")
