"""Contents of runs without times, to compare two ways of playing the same episodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keep_agent.guard import BAD_INPUT
from keep_agent.rollout.frames import FRAMES
from keep_agent.rollout.run_folder import LAST_SUM, TRACE, RunFolder, find_runs, read_summary
from keep_agent.rollout.trace import read_trace

Command = Callable[..., tuple[int, str, str]]  # main function, arguments -> exit code, output, errors
MACHINE = {"timed_on"}  # machine and number of workers
CLOCKS = {"timings", "loads", "computes"}  # fields of a trace's entry
TIMES = {"seconds", "parts", "ttft_ms", "ttft_overlapped_ms", "score_ms"}  # fields of a result and its steps
SUMMED_TIMES = {"seconds", "ttft_ms", "ttft_parts_ms", "ttft_overlapped_ms", "decision_ms", "score_ms",
                "ttft_cold_ms", "ttft_flip_ms", "config"}  # fmt: skip
CONTEXT = {"fresh_tokens", "encoded_token_layers"}  # every process encodes the context once


def the_run(under: Path | str = "outputs") -> Path:
    (run,) = find_runs(Path(under))
    return run


def assert_done(outcome: tuple[int, str, str]) -> None:
    """Assert that a command succeeded, from its exit code, standard output and standard error."""
    code, _, err = outcome
    assert code == 0, err


def assert_refused(outcome: tuple[int, str, str], *words: str) -> None:
    """Assert that a command refused its input in a single line with these words."""
    code, out, err = outcome
    assert (code, out, err.count("\n")) == (BAD_INPUT, "", 1), outcome
    assert err.startswith("error: ") and all(word in err for word in words), err


def after_commits(monkeypatch: pytest.MonkeyPatch, count: int, act: Callable[[], None]) -> None:
    """Call ``act`` after ``count`` episodes have been committed."""
    commit, numbers = RunFolder.commit, iter(range(1, 1000))

    def commit_and_act(run: RunFolder, *arguments: Any) -> None:
        commit(run, *arguments)
        if next(numbers) == count:
            act()

    monkeypatch.setattr(RunFolder, "commit", commit_and_act)


def without(row: dict[str, Any], keys: set[str]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in keys}


def results(run: Path) -> list[dict[str, Any]]:
    """Return every number of every step except times and counts that include the context."""
    rows = [without(result.to_json(), TIMES | MACHINE) for result in RunFolder.read(run)]
    return [row | {"steps": [without(step, TIMES | CONTEXT) for step in row["steps"]]} for row in rows]


def traces(run: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the trace's entries without times, by episode."""
    entries: dict[str, list[dict[str, Any]]] = {}
    for entry in read_trace(run / TRACE):
        entries.setdefault(entry["episode"], []).append(without(entry, CLOCKS))
    return entries


def summary(run: Path) -> dict[str, Any]:
    return without(read_summary(run), SUMMED_TIMES | CONTEXT | {LAST_SUM})


def pictures(run: Path) -> dict[str, bytes]:
    return {str(p.relative_to(run)): p.read_bytes() for p in (run / FRAMES).rglob("*") if p.is_file()}


def assert_same(run: Path, expected: Path) -> None:
    """Assert equal decisions, scores, outcomes, numbers and pictures, and that each episode occurs once."""
    indices = [row["index"] for row in results(run)]
    assert indices == sorted(set(indices)) and len(indices) > 1
    assert results(run) == results(expected)
    assert traces(run) == traces(expected)
    assert summary(run) == summary(expected)
    assert pictures(run) == pictures(expected)
