"""Journal: what was acknowledged is there after any kill, and whatever is changed, missing or exchanged is noticed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from keep_agent.agent.durable import Journal
from keep_agent.errors import CapacityError, CorruptError, DataError
from memory.files.end_mark import end_of
from memory.files.json_lines import Chain
from tests.keep_agent.rollout.test_run_folder_damage import damaged, limited

FIRST, SECOND, THIRD = (Chain.bound(text) for text in (b"robot", b"robot, later", b"robot, later still"))


def call(number: int) -> dict[str, object]:
    return {"call": "observe", "facts": [number]}


def made(path: Path, numbers: range = range(4, 7), start: Chain = SECOND) -> Path:
    """A journal of calls behind the memory that ``start`` stands for."""
    path.parent.mkdir(exist_ok=True)
    journal = Journal(path)
    journal.read(FIRST, "the memory", new=True)
    journal.append(call(0))
    journal.announce(start)
    journal.restart(start)
    for number in numbers:
        journal.append(call(number))
    journal.close()
    return path


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Calls 4 to 6."""
    return made(tmp_path / "journal.jsonl")


def calls(path: Path, start: Chain = SECOND, new: bool = False) -> list[int]:
    found = Journal(path)
    try:
        return [call["facts"][0] for call in found.read(start, "the memory", new)]
    finally:
        found.close()


def test_it_holds_the_calls_behind_the_memory(journal: Path) -> None:
    assert calls(journal) == [4, 5, 6]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("appended", [0, 1, 2])
def test_killed_while_the_memory_is_written_it_belongs_to_either(journal: Path, restarted: bool, appended: int) -> None:
    """Behind the old memory all calls are due, behind the new one none of them; also if this happens again and again.

    Where it happens again the journal may be older than both, as it could not begin anew.
    """
    found = Journal(journal)
    found.read(SECOND, "the memory", new=False)
    found.announce(THIRD)
    before = {path: path.read_bytes() for path in (journal, end_of(journal))}
    assert (calls_of_copy(journal, SECOND), calls_of_copy(journal, THIRD)) == ([4, 5, 6], [])
    if restarted:
        found.restart(THIRD)
        assert calls_of_copy(journal, THIRD) == []
    for path, content in before.items():
        path.write_bytes(content)
    found.close()
    again = Journal(journal)
    assert again.read(THIRD, "the memory", new=False) == []
    again.announce(FIRST)
    assert (calls_of_copy(journal, THIRD), calls_of_copy(journal, FIRST)) == ([], [])
    for number in range(appended):
        again.append(call(number))
    assert calls_of_copy(journal, THIRD) == list(range(appended))
    again.close()


def calls_of_copy(path: Path, start: Chain) -> list[int]:
    """The calls that are read after a kill now."""
    copy = path.parent / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    for file in (path, end_of(path)):
        shutil.copy(file, copy)
    return calls(copy / path.name, start)


def test_whatever_is_changed_or_missing_is_noticed(journal: Path) -> None:
    for what, content in damaged(journal):
        journal.write_bytes(content)
        with pytest.raises(DataError, match=r"journal\.jsonl"):
            calls(journal)
            pytest.fail(f"{what} is not noticed")


def test_every_changed_bit_of_the_mark_is_noticed(journal: Path) -> None:
    end = end_of(journal)
    whole = end.read_bytes()
    for place in range(len(whole)):
        end.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        with pytest.raises(CorruptError, match=r"journal\.end .*restore all files of the agent from one copy, or put"):
            calls(journal)


@pytest.mark.parametrize("left", [0, 1, 2])
@pytest.mark.parametrize("torn", [b"", b'{"call":"obs'])
def test_missing_calls_at_the_end_are_noticed(journal: Path, left: int, torn: bytes) -> None:
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:left]) + torn)
    with pytest.raises(CorruptError, match=rf"lacks its last lines, {left + 1} to 3, as journal\.end says"):
        calls(journal)


@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize("spoil", [Path.unlink, lambda end: end.write_bytes(b"")])
def test_a_journal_without_its_mark_is_refused(journal: Path, spoil: Callable[[Path], object], new: bool) -> None:
    spoil(end_of(journal))
    with pytest.raises(CorruptError, match=r"journal\.end is (missing|damaged)"):
        calls(journal, new=new)


def test_a_memory_that_has_a_journal_is_not_read_without_it(journal: Path) -> None:
    end_of(journal).unlink()
    journal.unlink()
    with pytest.raises(CorruptError, match=r"journal\.end is missing"):
        calls(journal)
    assert calls(journal, new=True) == []


def test_what_belongs_to_another_agent_or_memory_is_refused(journal: Path) -> None:
    other = made(journal.parent / "other" / journal.name, range(1, 5), Chain.bound(b"another robot"))
    own = {path: path.read_bytes() for path in (journal, end_of(journal))}
    for names in ([journal.name], ["journal.end"], [journal.name, "journal.end"]):
        for name in names:
            shutil.copy(other.with_name(name), journal.with_name(name))
        with pytest.raises(CorruptError, match=r"belongs elsewhere|does not belong to the memory"):
            calls(journal)
        for path, content in own.items():
            path.write_bytes(content)
    with pytest.raises(CorruptError, match=r"journal\.end .* does not belong to the memory"):
        calls(journal, THIRD)


def test_calls_without_checksums_are_refused(journal: Path) -> None:
    plain = [line.partition(b',"sum"')[0] + b"}\n" for line in journal.read_bytes().splitlines()]
    journal.write_bytes(b"".join(plain))
    with pytest.raises(CorruptError, match=r"journal\.jsonl:1 is damaged"):
        calls(journal)


def test_a_torn_call_that_was_never_acknowledged_is_cut_off_and_reported(
    journal: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"call":"obs')
    again = Journal(journal)
    assert len(again.read(SECOND, "the memory", new=False)) == 3
    assert "journal.jsonl:4 is cut off in the middle" in caplog.text
    again.append(call(7))
    again.close()
    assert calls(journal) == [4, 5, 6, 7]
    assert journal.read_bytes().startswith(whole)


def test_a_call_that_was_written_and_not_marked_is_there(journal: Path) -> None:
    end = end_of(journal)
    before = end.read_bytes()
    again = Journal(journal)
    again.read(SECOND, "the memory", new=False)
    again.append(call(7))
    again.close()
    end.write_bytes(before)
    assert calls(journal) == [4, 5, 6, 7]


def test_a_call_that_had_no_room_leaves_nothing(journal: Path) -> None:
    before = journal.read_bytes()
    again = Journal(journal)
    again.read(SECOND, "the memory", new=False)
    with (
        limited(len(before) + 10),
        pytest.raises(CapacityError, match=r"no room for .*journal\.jsonl \(File too large\)"),
    ):
        again.append(call(7))
    assert journal.read_bytes() == before
    again.append(call(7))
    again.close()
    assert calls(journal) == [4, 5, 6, 7]


@pytest.mark.parametrize("spoil", [lambda path: path.write_bytes(b"x\n"), lambda path: end_of(path).write_bytes(b"x")])
def test_begun_anew_it_replaces_whatever_was_there(journal: Path, spoil: Callable[[Path], object]) -> None:
    spoil(journal)
    again = Journal(journal)
    again.announce(THIRD)
    again.restart(THIRD)
    again.append(call(7))
    again.close()
    assert calls(journal, THIRD) == [7]


def test_a_journal_of_an_older_version_is_refused_with_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('1 3f1b2c4d {"call":"finish","success":true}\n')
    with pytest.raises(DataError, match="left behind by version 0.2; open and close the agent with that version"):
        calls(path, new=True)
