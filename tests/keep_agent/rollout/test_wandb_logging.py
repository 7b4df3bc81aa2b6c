"""An offline run is read back from its log, the way W&B's own sync reads it."""

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
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
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
    """All records, the one of the exit included: W&B's own process may still be writing when ``finish`` returns."""
    from wandb.proto.wandb_internal_pb2 import Record

    found: list[Any] = []

    def ended() -> bool:
        found[:] = [Record.FromString(raw) for raw in raw_records(path)]
        return any(record.WhichOneof("record_type") == "exit" for record in found)

    until(ended, lambda: f"{path} has no exit record")
    return found


def values(items: Any) -> dict[str, Any]:
    """``key`` or ``nested_key`` -> value of a list of JSON items."""
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def keys(items: Any) -> set[str]:
    """Outermost keys but W&B's own."""
    return {key for item in items if (key := item.key or item.nested_key[0])[0] != "_"}


def run_of(found: list[Any]) -> Any:
    return next(record.run for record in found if record.WhichOneof("record_type") == "run")


def summary_of(found: list[Any]) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for record in found:
        summary |= values(record.summary.update)
    return summary


def result(index: int, success: bool) -> EpisodeResult:
    stop = "success" if success else "done"
    task = TaskOutcome("t", "pick_and_place_simple", "Put it there.", success, 1, 1, 2, 2, stop)
    return EpisodeResult(index, f"e{index}", (task,), (StepNumbers(layers=2, ttft_ms=10.0, prompt_tokens=5),), 0.5)


def settings(mode: str) -> dict[str, Any]:
    return {"mode": mode, "project": "keep-agent", "entity": None, "group": "tests", "name": None}


def test_config_metrics_summary_table_and_artifact_are_in_the_offline_log(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"v":1}\n')
    results = [result(0, True), result(1, False)]
    log = open_log(settings("offline"), {"planner": {"name": "keep"}, "eval": {"seed": 7}}, tmp_path)
    for one in results:
        log.episode(one)
    log.finish({"success_rate": 0.5, "ttft_ms": {"p50": 10.0}, "config": {}, "versions": {}}, results, trace)

    (path,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    found = records(path)
    run = run_of(found)
    config = values(run.config.update)
    assert run.project == "keep-agent" and run.run_group == "tests"
    assert config["planner"] == {"name": "keep"} and config["eval"] == {"seed": 7}
    history = [values(record.history.item) for record in found if record.WhichOneof("record_type") == "history"]
    metrics = [row for row in history if "episode/success" in row]
    shown = [(row["episode/index"], row["episode/success"], row["episode/ttft_ms"]) for row in metrics]
    assert shown == [(0, 1.0, 10.0), (1, 0.0, 10.0)]
    assert summary_of(found)["success_rate"] == 0.5
    assert "trace" in [record.artifact.type for record in found if record.WhichOneof("record_type") == "artifact"]
    (file,) = tmp_path.glob("wandb/offline-run-*/files/media/table/tables/episodes*.json")
    table = json.loads(file.read_text())
    success = table["columns"].index("success")
    assert [row[success] for row in table["data"]] == [True, False]


def test_a_key_has_one_meaning(tmp_path: Path) -> None:
    """What is logged per episode is no part of the summary, and the summary overwrites nothing that was logged."""
    results = [result(0, True), result(1, False)]
    log = open_log(settings("offline"), {}, tmp_path)
    for one in results:
        log.episode(one)
    summary = summarize(results)
    log.finish({**summary, "config": {}, "versions": {}}, results, tmp_path / "trace.jsonl")

    (path,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    found = records(path)
    logged = {key for record in found for key in keys(record.history.item)}
    summed = {key for record in found for key in keys(record.summary.update)}
    assert logged & summed == {"tables/episodes"} == {key for key in logged if not key.startswith("episode/")}
    told = summary_of(found)
    assert {key: told.get(key) for key in summary} == json.loads(json.dumps(summary))
    metrics = [record.metric for record in found if record.WhichOneof("record_type") == "metric"]
    (defined,) = [metric for metric in metrics if metric.glob_name == "episode/*"]
    assert defined.summary.none and defined.step_metric == "episode/index"


def test_a_resumed_run_goes_on_under_its_own_id(tmp_path: Path) -> None:
    for index in range(2):
        log = open_log(settings("offline"), {}, tmp_path)
        log.episode(result(index, True))
        log.finish({}, [], tmp_path / "trace.jsonl")
        time.sleep(1.1)  # W&B names its offline folders by the second
    paths = sorted(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    assert len({run_of(records(path)).run_id for path in paths}) == 1


def test_disabled_does_not_even_load_wandb_and_other_modes_are_refused(tmp_path: Path) -> None:
    assert isinstance(open_log(settings("disabled"), {}, tmp_path), NoLog)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="wizard"):
        open_log(settings("wizard"), {}, tmp_path)
