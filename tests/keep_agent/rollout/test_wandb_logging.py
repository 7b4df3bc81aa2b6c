"""Offline W&B runs, read from their logs as W&B's sync command reads them."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eval.common.metrics import summarize
from keep_agent.errors import ConfigError
from keep_agent.rollout.results import EpisodeResult, StepNumbers, TaskOutcome
from keep_agent.rollout.wandb_logging import NoLog, open_log
from tests.waiting import until

BLOCK, HEADER, FILE_HEADER = 32 * 1024, 7, 7  # LevelDB log format behind W&B's own file header
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def raw_records(path: Path) -> Iterator[bytes]:
    data, at, parts = path.read_bytes(), FILE_HEADER, []
    while at + HEADER <= len(data):
        rest = BLOCK - at % BLOCK
        if rest < HEADER:
            at += rest
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + HEADER])
        if not kind or at + HEADER + length > len(data):  # the end, or it is being written
            break
        parts.append(data[at + HEADER : at + HEADER + length])
        at += HEADER + length
        if kind in (FULL, LAST):
            yield b"".join(parts)
            parts = []


def records(path: Path) -> list[Any]:
    """Wait for the exit record, since W&B's process may write after ``finish`` returns; return all records."""
    from wandb.proto.wandb_internal_pb2 import Record

    def complete() -> bool:
        return bool(of_kind([Record.FromString(raw) for raw in raw_records(path)], "exit"))

    until(complete, lambda: f"{path} has no exit record")
    return [Record.FromString(raw) for raw in raw_records(path)]


def of_kind(records: list[Any], kind: str) -> list[Any]:
    return [getattr(record, kind) for record in records if record.WhichOneof("record_type") == kind]


def values(items: Any) -> dict[str, Any]:
    """Return the values of JSON items by ``key``, or ``nested_key`` with slashes."""
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def keys(items: Any) -> set[str]:
    """Return the outermost keys except those of W&B itself."""
    return {key for item in items if (key := item.key or item.nested_key[0])[0] != "_"}


def summary_of(records: list[Any]) -> dict[str, Any]:
    return {key: value for record in records for key, value in values(record.summary.update).items()}


def result(index: int, success: bool) -> EpisodeResult:
    stop = "success" if success else "done"
    task = TaskOutcome("t", "pick_and_place_simple", "Put it there.", success, 1, 1, 2, 2, stop)
    return EpisodeResult(index, f"e{index}", (task,), (StepNumbers(layers=2, ttft_ms=10.0, prompt_tokens=5),), 0.5)


RESULTS = [result(0, True), result(1, False)]


def settings(mode: str) -> dict[str, Any]:
    return {"mode": mode, "project": "keep-agent", "entity": None, "group": "tests", "name": None}


def log_run(folder: Path, config: dict[str, Any], summary: dict[str, Any]) -> list[Any]:
    log = open_log(settings("offline"), config, folder)
    for episode in RESULTS:
        log.episode(episode)
    log.finish({**summary, "config": {}, "versions": {}}, RESULTS, folder / "trace.jsonl")
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    return records(path)


def test_offline_log_has_config_metrics_summary_table_and_artifact(tmp_path: Path) -> None:
    (tmp_path / "trace.jsonl").write_text('{"v":1}\n')
    config = {"planner": {"name": "keep"}, "eval": {"seed": 7}}
    log = log_run(tmp_path, config, {"success_rate": 0.5, "ttft_ms": {"p50": 10.0}})
    run, *_ = of_kind(log, "run")
    assert run.project == "keep-agent" and run.run_group == "tests"
    saved_config = values(run.config.update)
    assert {key: saved_config[key] for key in config} == config
    rows = [row for row in (values(row.item) for row in of_kind(log, "history")) if "episode/success" in row]
    metrics = [(row["episode/index"], row["episode/success"], row["episode/ttft_ms"]) for row in rows]
    assert metrics == [(0, 1.0, 10.0), (1, 0.0, 10.0)] and summary_of(log)["success_rate"] == 0.5
    assert "trace" in [artifact.type for artifact in of_kind(log, "artifact")]
    (file,) = tmp_path.glob("wandb/offline-run-*/files/media/table/tables/episodes*.json")
    table = json.loads(file.read_text())
    success = table["columns"].index("success")
    assert [row[success] for row in table["data"]] == [True, False]


def test_metrics_and_summary_share_no_key(tmp_path: Path) -> None:
    summary = summarize(RESULTS)
    log = log_run(tmp_path, {}, summary)
    metric_keys = {key for record in log for key in keys(record.history.item)}
    summary_keys = {key for record in log for key in keys(record.summary.update)}
    assert metric_keys & summary_keys == {"tables/episodes"}
    assert {key for key in metric_keys if not key.startswith("episode/")} == {"tables/episodes"}
    saved_summary = summary_of(log)
    assert {key: saved_summary.get(key) for key in summary} == json.loads(json.dumps(summary))
    (metric,) = [metric for metric in of_kind(log, "metric") if metric.glob_name == "episode/*"]
    assert metric.summary.none and metric.step_metric == "episode/index"


def test_resumed_run_keeps_its_id(tmp_path: Path) -> None:
    for index in range(2):
        log = open_log(settings("offline"), {}, tmp_path)
        log.episode(result(index, True))
        log.finish({}, [], tmp_path / "trace.jsonl")
        time.sleep(1.1)  # W&B names its offline folders by the second
    paths = sorted(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    assert len({of_kind(records(path), "run")[0].run_id for path in paths}) == 1


def test_disabled_mode_writes_no_files_and_unknown_modes_are_refused(tmp_path: Path) -> None:
    assert isinstance(open_log(settings("disabled"), {}, tmp_path), NoLog) and not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="wizard"):
        open_log(settings("wizard"), {}, tmp_path)
