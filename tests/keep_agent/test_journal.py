"""Journal: what was acknowledged is there after any kill, and whatever is changed or missing is noticed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from keep_agent.errors import CapacityError, CorruptError, DataError
from keep_agent.journal import Journal
from tests.keep_agent.test_runfolder_damage import damaged, limited


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Calls 4 to 6, behind a memory that holds 3."""
    made = Journal(tmp_path / "journal.jsonl")
    for number in range(6):
        if number == 3:
            made.restart()
        made.append({"call": "observe", "facts": [number + 1]})
    made.close()
    return tmp_path / "journal.jsonl"


def calls(path: Path, kept: int = 3) -> list[int]:
    found = Journal(path)
    try:
        return [call["facts"][0] for call in found.after(kept)]
    finally:
        found.close()


def test_it_holds_the_calls_behind_the_memory(journal: Path) -> None:
    assert calls(journal) == [4, 5, 6]
    assert calls(journal, 5) == [6]
    assert calls(journal, 7) == []  # the memory was written, and the process killed before the journal began anew


def test_whatever_is_changed_or_missing_is_noticed(journal: Path) -> None:
    whole = journal.read_bytes()
    for what, content in damaged(journal):
        journal.write_bytes(content)
        with pytest.raises(DataError, match=r"journal\.jsonl"):
            calls(journal)
            pytest.fail(f"{what} is not noticed")
    journal.write_bytes(whole)
    with pytest.raises(CorruptError, match="calls 3 to 3 are missing"):
        calls(journal, 2)


@pytest.mark.parametrize("left", [0, 1, 2])
@pytest.mark.parametrize("torn", [b"", b'{"entry":9'])
def test_missing_calls_at_the_end_are_noticed(journal: Path, left: int, torn: bytes) -> None:
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:left]) + torn)
    with pytest.raises(CorruptError, match=rf"{4 + left} to 6, are missing.* delete .*journal\.end"):
        calls(journal)
    journal.with_suffix(".end").unlink()
    assert calls(journal) == [4, 5, 6][:left]


def test_a_torn_call_that_was_never_acknowledged_is_cut_off_and_reported(
    journal: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"entry":7,"call":"obs')
    again = Journal(journal)
    assert [call["facts"][0] for call in again.after(3)] == [4, 5, 6]
    assert "journal.jsonl:4 is cut off in the middle" in caplog.text
    again.append({"call": "observe", "facts": [7]})
    again.close()
    assert calls(journal) == [4, 5, 6, 7]
    assert journal.read_bytes().startswith(whole)


def test_a_damaged_note_of_the_last_call_is_refused(journal: Path) -> None:
    end = journal.with_suffix(".end")
    end.write_bytes(end.read_bytes().replace(b"6 ", b"4 "))
    with pytest.raises(CorruptError, match=r"journal\.end is damaged; delete it"):
        calls(journal)


def test_a_call_that_had_no_room_leaves_nothing(journal: Path) -> None:
    before = journal.read_bytes()
    again = Journal(journal)
    again.after(3)
    with (
        limited(len(before) + 10),
        pytest.raises(CapacityError, match=r"no room for .*journal\.jsonl \(File too large\)"),
    ):
        again.append({"call": "observe", "facts": [7]})
    assert journal.read_bytes() == before
    again.append({"call": "observe", "facts": [7]})
    again.close()
    assert calls(journal) == [4, 5, 6, 7]


@pytest.mark.parametrize(
    "spoil", [lambda path: path.write_bytes(b"x\n"), lambda path: path.with_suffix(".end").write_bytes(b"x")]
)
def test_begun_anew_it_goes_on_with_higher_numbers_whatever_was_there(
    journal: Path, spoil: Callable[[Path], object]
) -> None:
    spoil(journal)
    made = Journal(journal, anew=True)
    assert made.number == 6
    made.restart()
    made.append({"call": "observe", "facts": [7]})
    made.close()
    assert calls(journal, 6) == [7]


def test_a_journal_of_an_older_version_is_refused_with_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('1 3f1b2c4d {"call":"finish","success":true}\n')
    with pytest.raises(DataError, match="left behind by version 0.2; open and close the agent with that version"):
        Journal(path)
