"""Command ``eval.pipeline``: output, files and refused options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eval.pipeline import SCHEDULE_METHODS, main, parser, report
from keep_agent.console import make_console
from tests.eval.workers.runs import Command, assert_done

SMALL = ["--model", "planner-tiny", "--layers", "6", "--segments", "8", "--segment-tokens", "5", "--query", "4"]
SLOW = [*SMALL, "--device", "orin", "--link", "0.05", "--schedule", "linear", "--average", "0.5"]


def run(*options: str) -> None:
    report(parser().parse_args(options), make_console())


def error_of(call: Command, *options: str) -> str:
    code, _, err = call(main, *options)
    assert code == 2
    return err


def test_all_stages_on_one_time_axis(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(*SLOW, "--out", str(tmp_path))
    output = capsys.readouterr().out
    assert all(stage in output for stage in ("serial", "next_layer", "layer_balanced", "bound"))
    record = json.loads((tmp_path / "pipeline.json").read_text())
    schedules = {stage["loading"]: stage for stage in record["schedules"]}
    spans = [schedules[name]["makespan"] for name in ("layer_balanced", "next_layer", "serial")]
    assert spans == sorted(spans) and spans[0] < spans[2]
    assert record["active_rows"][0] == 44 and len(record["times"]["mlp"]) == 6
    for stage in schedules.values():
        assert stage["makespan"] == max(event["end"] for event in stage["events"])
        assert stage["bytes"] == sum(44 - rows for rows in record["active_rows"]) * record["row_bytes"]
        assert stage["bounds"]["simple"] <= stage["bounds"]["tight"] <= stage["makespan"] * (1 + 1e-9)
    assert (tmp_path / "gantt.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_command_gives_the_same_schedules(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run(*SLOW, "--loading", "next_layer", "--seed", "3", "--out", str(tmp_path / name))
    first, second = (json.loads((tmp_path / name / "pipeline.json").read_text()) for name in ("a", "b"))
    assert first["schedules"] == second["schedules"]


def test_a_sweep_shows_the_gain_of_balancing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    large = ["--model", "qwen2.5-14b", "--layers", "16", "--link", "1", "--schedule", "cosine", "--average", "0.3"]
    run(*large, "--sweep", "--markdown", "--out", str(tmp_path))
    points = json.loads((tmp_path / "pipeline.json").read_text())["sweep"]
    assert (points[0]["ratio"], points[-1]["ratio"]) == (0.125, 8)
    gains = [point["makespan"]["next_layer"] / point["makespan"]["layer_balanced"] for point in points]
    assert max(gains[3:-3]) > 1.15 and gains[0] == gains[-1] == pytest.approx(1)
    assert "| load / compute |" in capsys.readouterr().out


def test_measured_times_replace_a_device(tmp_path: Path, call: Command) -> None:
    file = tmp_path / "times.json"
    file.write_text(json.dumps({"attention": [1, 1, 1], "importance": [0, 0, 0], "mlp": [2, 2, 0]}))
    prompt = SMALL[4:]  # without options of a model
    options = "--model", "planner-tiny", *prompt, "--times", str(file), "--link", "shared", "--out", str(tmp_path)
    assert_done(call(main, *options))
    record = json.loads((tmp_path / "pipeline.json").read_text())
    assert [stage["makespan"] for stage in record["schedules"]] == [7, 7, 7]
    assert len(record["active_rows"]) == 3
    times = {"attention": [1, 1], "importance": [0, 0], "mlp": [2, 0], "active": [[0, 1], [1]], "row_bytes": 100}
    file.write_text(json.dumps(times))
    for options in (["--average", "0.5"], ["--seed", "5"], ["--model", "planner-tiny"]):
        assert f"{options[0]} has no effect" in error_of(call, *prompt, "--times", str(file), *options)
    assert "nowhere.json does not exist" in error_of(call, "--times", "nowhere.json")


@pytest.mark.parametrize(
    ("method", "importance"),
    [("keep", "before"), ("keep", "beside"), ("cacheblend", "before"), ("epic", "before"), ("full_reuse", "before")],
)
def test_every_method_is_simulated(method: str, importance: str, tmp_path: Path) -> None:
    slow = SLOW if method in SCHEDULE_METHODS else SLOW[:-4]  # without a schedule
    run(*slow, "--recompute", method, "--importance", importance, "--chunk", "0.001", "--out", str(tmp_path))
    record = json.loads((tmp_path / "pipeline.json").read_text())
    kinds = {(event["lane"], event["kind"]) for event in record["schedules"][0]["events"]}
    lanes = {"keep": {"importance" if importance == "beside" else "compute"}, "cacheblend": {"compute"}}
    assert {lane for lane, kind in kinds if kind == "importance"} == lanes.get(method, set())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "abacus"], "device 'abacus'"),
        (["--link", "-1"], "use a bandwidth above 0"),
        (["--loading", "later"], "loading later is unknown"),
        (["--loading", "none"], "use serial, next_layer, layer_balanced"),
        (["--model", "gpt-9"], "model 'gpt-9'"),
        (["--chunk", "0"], "--chunk 0"),
        (["--average", "2"], "average=2"),
        (["--recompute", "epic", "--average", "0.5"], "--average has no effect: epic computes the same rows at every"),
        (["--recompute", "cacheblend", "--importance", "beside"], "--importance has no effect: cacheblend does not"),
        (["--times", "t.json"], "--layers has no effect: --times sets the times"),
        (["--recompute", "epic", "--seed", "7"], "--seed has no effect: epic computes the same rows at every layer"),
        (["--times", "t.json", "--link", "5", "--device", "h200"], "--device has no effect: --times and --link"),
        (["--sweep", "--link", "shared"], "nothing to sweep"),
        (["--ratio", "2"], "--ratio has no effect: it needs --measure"),
    ],
)
def test_invalid_simulations_are_refused(options: list[str], message: str, call: Command) -> None:
    assert message in error_of(call, *SMALL, *options)


REAL = ["--measure", "--model", "planner-tiny", "--segments", "6", "--segment-tokens", "8", "--query", "4"]
FALLING = [*REAL, "--threads", "1", "--schedule", "linear", "--average", "0.4"]


def test_the_engine_is_measured_and_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Measured prefills load all stored rows that are not active, wait for the link, and respect the lower bounds."""
    run(*FALLING, "--ratio", "2", "--repeats", "3", "--out", str(tmp_path))
    output = capsys.readouterr().out
    assert "layer_balanced" in output and "loading 2 x computing" in output
    (over,) = json.loads((tmp_path / "pipeline.json").read_text())["links"]
    assert over["ratio"] == pytest.approx(2)
    assert [stage["loading"] for stage in over["stages"]] == ["serial", "next_layer", "layer_balanced"]
    for stage in over["stages"]:
        assert stage["active_rows"][0] == 52 and stage["active_rows"][-1] < 20
        for kind in ("measured", "simulated"):
            assert stage[kind]["bytes"] == sum(52 - rows for rows in stage["active_rows"]) * 2 * 192 * 2
        assert all(turn["bound"] <= turn["tight_bound"] <= turn["measured"] for turn in stage["turns"])
        spans = sorted(turn["measured"] for turn in stage["turns"])
        assert stage["measured"]["makespan"] == spans[1]
    for turn in over["stages"][0]["turns"]:
        assert turn["measured"] >= stage["measured"]["bytes"] / over["link"]["bandwidth"]  # all bytes cross the link
    assert (tmp_path / "gantt.png").read_bytes().startswith(b"\x89PNG")


def test_a_measured_sweep_varies_the_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--sweep", "--repeats", "1", "--loading", "layer_balanced", "--link", "pcie4"]
    run(*FALLING, *options, "--markdown", "--out", str(tmp_path))
    links = json.loads((tmp_path / "pipeline.json").read_text())["links"]
    assert [over["ratio"] for over in links] == pytest.approx([0.25, 0.5, 1, 2, 4])
    assert {over["link"]["latency"] for over in links} == {10e-6}
    assert "| load / compute |" in capsys.readouterr().out


@pytest.mark.parametrize(("method", "importance"), [("cacheblend", "before"), ("epic", "before"), ("keep", "beside")])
def test_every_method_is_measured(method: str, importance: str, tmp_path: Path) -> None:
    options = ["--link", "0.01", "--repeats", "1", "--segment-tokens", "20", "--recompute", method]
    run(*REAL, *options, "--importance", importance, "--loading", "next_layer", "--out", str(tmp_path))
    (over,) = json.loads((tmp_path / "pipeline.json").read_text())["links"]
    (stage,) = over["stages"]
    assert over["link"]["bandwidth"] == 10e6 and stage["measured"]["bytes"] > 0
    beside = any(event["lane"] == "importance" for event in stage["measured"]["events"])
    assert beside == (importance == "beside")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "h200"], "--device has no effect: --measure runs the engine"),
        (["--times", "times.json"], "--times has no effect"),
        (["--ratio", "0"], "--ratio 0"),
        (["--ratio", "3", "--sweep"], "--ratio has no effect: --sweep sets the ratios"),
        (["--repeats", "0"], "--repeats 0"),
        (["--threads", "0"], "--threads 0"),
        (["--link", "shared"], "shared cannot be imitated"),
        (["--segments", "600"], "4804 rows need different tokens, but there are only 4096"),
        (["--recompute", "keep", "--average", "1"], "nothing has to be loaded"),
    ],
)
def test_invalid_measurements_are_refused(options: list[str], message: str, call: Command) -> None:
    assert message in error_of(call, *REAL, *options)
