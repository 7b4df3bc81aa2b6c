from __future__ import annotations

from pathlib import Path

import pytest

from keep_agent.viewer.episode_filters import EpisodeRow, Filters, episode_rows
from keep_agent.viewer.runs import RunLibrary
from tests.keep_agent.viewer.traces import crash, end, opening, step, write

TASK = {"id": "t", "type": "fetch", "instruction": "Fetch it."}


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([opening(tasks=[TASK]), step()], "open"),
        ([opening(tasks=[TASK]), step(), end(True)], "succeeded"),
        ([opening(tasks=[TASK]), step(), end(False)], "failed"),
        ([opening(tasks=[TASK, TASK]), step(), end(True)], "open"),
        ([opening(tasks=[TASK, TASK]), step(), end(True), end(True, 1)], "succeeded"),
        ([opening(tasks=[TASK]), step(), end(True), crash()], "crashed"),
        ([opening(tasks=[TASK]), crash()], "crashed"),
        ([opening(), step(), end(True)], "open"),
    ],
)
def test_status_of_an_episode(lines: list, status: str, tmp_path: Path) -> None:
    write(tmp_path, lines)
    assert [row.status for row in episode_rows(RunLibrary(tmp_path).runs())] == [status]


def test_running_agent_is_listed_by_the_instruction_of_its_steps(tmp_path: Path) -> None:
    write(tmp_path / "runs" / "agent-7", [opening("agent-7"), step(0, "agent-7", instruction="Tidy up.")])
    (row,) = episode_rows(RunLibrary(tmp_path / "runs").runs())
    values = (row.run, row.episode, row.instruction, row.status, row.steps)
    assert values == ("agent-7", "agent-7", "Tidy up.", "open", 1)


def test_recorded_run_is_listed(random_run: Path) -> None:
    rows = episode_rows(RunLibrary(random_run).runs())
    values = {(row.run, row.method, row.types, row.goal) for row in rows}
    assert values == {(".", "random", ("pick_and_place_simple",), (0, 1))}
    assert all(row.status == "failed" and row.steps <= 4 for row in rows)


def row(**fields: object) -> EpisodeRow:
    plain = {"run": "r", "method": "keep", "episode": "house-1", "instruction": "Heat an Egg", "tasks": 1}
    rest = {"types": ("heat", "place"), "steps": 3, "failures": 1, "goal": None, "status": "failed"}
    return EpisodeRow(**(plain | rest | fields))  # type: ignore[arg-type]


def test_filters_exclude_rows() -> None:
    assert Filters().keep(row()) and Filters("failed", "keep", "place", "egg").keep(row())
    assert Filters("failed").keep(row(status="crashed")), "a crash is a failure"
    assert not Filters("crashed").keep(row()) and not Filters("failed").keep(row(status="open"))
    assert not Filters(method="epic").keep(row()) and not Filters(type="clean").keep(row())
    assert not Filters(text="milk").keep(row())
