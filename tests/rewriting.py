"""Changes to files of a run, with the checksums of the new content."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keep_agent.rollout.run_folder import LAST_SUM, LINE_COUNT, RUN_ID, SUMMARY, TRACE_COUNT, chain_start
from memory.files.end_mark import MarkedFile, end_of
from memory.files.json_lines import Chain, LineFile, read_lines
from memory.files.sealed_json import read_sealed, write_sealed

Change = Callable[[dict[str, Any]], object]


def change_object(file: Path, change: Change) -> None:
    """Apply a change to the object in a file, and update the lines that refer to it."""
    start, lines = chain_start(file.parent), sorted(file.parent.glob("*.jsonl"))
    rows = {path: _rows(path, start) for path in lines}
    content = read_sealed(file, "")
    change(content)
    write_sealed(file, content)
    for path in lines:
        _write(path, rows[path])


def change_lines(file: Path, *changes: Change) -> None:
    """Apply a change to each of the first lines."""
    rows = _rows(file, chain_start(file.parent))
    for row, change in zip(rows, changes, strict=False):
        change(row)
    _write(file, rows)


def keep_lines(file: Path, count: int) -> None:
    """Keep the first lines of a file, as if the run had been killed after them."""
    _write(file, _rows(file, chain_start(file.parent))[:count])


def as_of_version_0_2(run: Path) -> None:
    """Remove checksums, marks and counts from a run folder."""
    for file in run.glob("*.jsonl"):
        rows = _rows(file, chain_start(run))
        plain = [{key: value for key, value in row.items() if key != TRACE_COUNT} for row in rows]
        file.write_text("".join(json.dumps(row) + "\n" for row in plain))
        end_of(file).unlink(missing_ok=True)
    for file in run.glob("*.json"):
        content = read_sealed(file, "")
        file.write_text(json.dumps({key: content[key] for key in content if key not in (RUN_ID, LAST_SUM, LINE_COUNT)}))


def _rows(file: Path, start: Chain) -> list[dict[str, Any]]:
    return [line.value for line in read_lines(file, start=start)]


def _write(file: Path, rows: list[dict[str, Any]]) -> None:
    start, marked = chain_start(file.parent), end_of(file).exists()
    file.unlink()
    out = MarkedFile.begin(file, start) if marked else LineFile(file, None, start)
    out.append(rows)
    summary = file.with_name(SUMMARY)
    if marked and summary.exists():
        write_sealed(summary, {**read_sealed(summary, ""), LAST_SUM: f"{out.checksum:08x}"})
