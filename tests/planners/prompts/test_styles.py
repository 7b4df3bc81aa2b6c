from __future__ import annotations

import pytest

from keep_agent.errors import ConfigError
from planners.prompts.styles import Edit, FactRecord, make_style

CABINET = FactRecord("cabinet_1", "receptacle", "cabinet", states=("closed", "unseen"))
OPEN_CABINET = FactRecord("cabinet_1", "receptacle", "cabinet", states=("open",))
MUG = FactRecord("mug_1", "object", "mug", "cabinet_1", states=("clean",))
REMOVED = FactRecord("mug_1", "object", "mug", gone=True)
MUG_IN_HAND = FactRecord("mug_1", "object", "mug", "agent")
AGENT = FactRecord("agent", "agent", "agent", "cabinet_1", "mug_1")


def texts(edits: list[Edit]) -> list[str | None]:
    return [edit.text for edit in edits]


def test_plain_lines_are_self_contained_and_rewritten() -> None:
    style = make_style("plain")
    lines = ["unseen cabinet cabinet_1 closed\n", "agent at cabinet_1 holding mug_1\n"]
    assert texts(style.edits([CABINET, AGENT])) == lines
    assert style.edits([MUG]) == [Edit("mug_1", "object", "mug mug_1 cabinet_1 clean\n")]
    assert style.edits([MUG_IN_HAND])[0] == Edit("mug_1", "object", "mug mug_1 hand\n")
    assert style.edits([REMOVED]) == [Edit("mug_1", "object", None)]
    assert make_style("plain", "append").edits([REMOVED]) == [Edit("mug_1", "object", "mug mug_1 gone\n")]


def test_linked_members_follow_their_header() -> None:
    style = make_style("linked")
    shelf, book = FactRecord("shelf_1", "receptacle", "shelf"), FactRecord("book_1", "object", "book", "shelf_1")
    edits = style.edits([OPEN_CABINET, shelf, MUG, book])
    lines = ["cabinet cabinet_1 open\n", "there mug mug_1 clean\n", "shelf shelf_1\n", "there book book_1\n"]
    assert texts(edits) == lines and edits[1].parent == "cabinet_1"


def test_linked_changes_are_new_lines_and_first_lines_stay() -> None:
    style = make_style("linked")
    style.edits([OPEN_CABINET, MUG])
    assert style.edits([MUG_IN_HAND]) == [Edit("mug_1/now", "object", "now mug mug_1 hand\n", "mug_1")]
    closed = FactRecord("cabinet_1", "receptacle", "cabinet", states=("closed",))
    assert style.edits([closed]) == [Edit("cabinet_1/now", "receptacle", "now cabinet cabinet_1 closed\n", "cabinet_1")]
    assert texts(style.edits([REMOVED])) == ["now mug mug_1 gone\n"]


def test_a_linked_header_is_rewritten_at_the_first_sight_of_its_content() -> None:
    style = make_style("linked")
    assert texts(style.edits([CABINET])) == ["unseen cabinet cabinet_1 closed\n"]
    assert texts(style.edits([OPEN_CABINET, MUG])) == ["cabinet cabinet_1 open\n", "there mug mug_1 clean\n"]


def test_an_object_that_appears_later_gets_a_line_of_its_own() -> None:
    style = make_style("linked")
    style.edits([OPEN_CABINET])
    assert style.edits([MUG]) == [Edit("mug_1", "object", "now mug mug_1 cabinet_1 clean\n")]


def test_reset_clears_the_written_entities() -> None:
    style = make_style("linked")
    style.edits([OPEN_CABINET, MUG])
    style.reset()
    assert texts(style.edits([OPEN_CABINET, MUG])) == ["cabinet cabinet_1 open\n", "there mug mug_1 clean\n"]


def test_an_unknown_style_is_refused() -> None:
    with pytest.raises(ConfigError, match="plain, linked"):
        make_style("verse")


@pytest.mark.parametrize(
    ("fact", "sentence"),
    [
        (FactRecord("mug_1", "object", "mug", place="desk_1"), "There is a mug called mug_1, and it is at desk_1 now."),
        (
            FactRecord("mug_1", "object", "mug", place="agent", states=("cold", "sliced", "clean")),
            "There is a mug called mug_1, and it is in the robot's hand now; it is cold, sliced and clean.",
        ),
        (FactRecord("mug_1", "object", "mug"), "There is a mug called mug_1, and it is at an unknown place now."),
        (
            FactRecord("desk_1", "receptacle", "desk"),
            "There is a desk called desk_1 in the house; the robot knows what is there.",
        ),
        (
            FactRecord("drawer_2", "receptacle", "drawer", place="bath_1", states=("closed", "unseen")),
            "There is a drawer called drawer_2 in bath_1, and it is closed; the robot has not yet seen what is there.",
        ),
        (FactRecord("agent", "agent", "agent"), "The robot is at the start, holds nothing and sees nothing."),
        (
            FactRecord("agent", "agent", "agent", place="desk_1", holds="pen_1", sees=("mug_1", "cd_2")),
            "The robot is at desk_1, holds pen_1 and sees mug_1 and cd_2.",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else value.id,
)
def test_natural_facts_are_sentences(fact: FactRecord, sentence: str) -> None:
    (edit,) = make_style("natural").edits([fact])
    assert edit == Edit(fact.id, fact.category, f"{sentence}\n")


def test_natural_log_lines_and_removals_are_sentences() -> None:
    style = make_style("natural")
    assert (
        style.history(3, "go to desk_1").text == "In an earlier step the robot did this with success: go to desk_1.\n"
    )
    outcome = "In an earlier task the robot was asked to do this: get a mug; it failed after 7 steps.\n"
    assert style.finished(1, "Get a  MUG", False, 7) == Edit("task_1", "task", outcome)
    example = style.example(2, "Get a mug", ("go to desk 1", "pick up mug 1"))
    steps = "its steps were: go to desk_1 and pick up mug_1"
    text = f"In an example a robot was asked to do this: get a mug; {steps}.\n"
    assert example == Edit("example_2", "task", text)
    assert style.edits([REMOVED])[0].text is None
    (line,) = make_style("natural", "append").edits([REMOVED])
    assert line.text == "The mug called mug_1 was here before, but it does not exist any more.\n"
