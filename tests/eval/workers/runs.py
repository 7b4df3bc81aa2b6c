"""Runs without their clocks: what two ways of playing the same episodes must have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from keep_agent.rollout.frames import FRAMES
from keep_agent.rollout.run_folder import LAST, TRACE, RunFolder, find_runs, read_summary
from keep_agent.rollout.trace import read_trace

PLAYED = {"timed_on"}  # by how many workers, on what
CLOCKS = {"timings", "loads", "computes"}  # of a trace's entry
TIMES = {"seconds", "parts", "ttft_ms", "ttft_overlapped_ms", "score_ms"}  # of a result and its steps
SUMMED_TIMES = {"seconds", "ttft_ms", "ttft_parts_ms", "ttft_overlapped_ms", "decision_ms", "score_ms",
                "ttft_cold_ms", "ttft_flip_ms", "config"}  # fmt: skip
CONTEXT = {"fresh_tokens", "encoded_token_layers"}  # every process encodes the context once


def the_run(under: Path | str = "outputs") -> Path:
    (found,) = find_runs(Path(under))
    return found


def assert_done(ended: tuple[int, str, str]) -> None:
    """A command's exit code, standard output and standard error."""
    code, _, err = ended
    assert code == 0, err


def without(row: dict[str, Any], keys: set[str]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in keys}


def results(run: Path) -> list[dict[str, Any]]:
    """Every number of every step but times, and what counts the context."""
    rows = [without(result.to_json(), TIMES | PLAYED) for result in RunFolder.read(run)]
    return [row | {"steps": [without(step, TIMES | CONTEXT) for step in row["steps"]]} for row in rows]


def traces(run: Path) -> dict[str, list[dict[str, Any]]]:
    """By episode."""
    found: dict[str, list[dict[str, Any]]] = {}
    for entry in read_trace(run / TRACE):
        found.setdefault(entry["episode"], []).append(without(entry, CLOCKS))
    return found


def summary(run: Path) -> dict[str, Any]:
    return without(read_summary(run), SUMMED_TIMES | CONTEXT | {LAST})


def pictures(run: Path) -> dict[str, bytes]:
    return {str(p.relative_to(run)): p.read_bytes() for p in (run / FRAMES).rglob("*") if p.is_file()}


def assert_same(run: Path, other: Path) -> None:
    """The same decisions, scores, outcomes, numbers and pictures, each episode once."""
    indices = [row["index"] for row in results(run)]
    assert indices == sorted(set(indices)) and len(indices) > 1
    assert results(run) == results(other)
    assert traces(run) == traces(other)
    assert summary(run) == summary(other)
    assert pictures(run) == pictures(other)
