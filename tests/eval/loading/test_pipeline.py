"""The command: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eval.pipeline import SCHEDULE_METHODS as FALLS
from eval.pipeline import main, parser, report
from keep_agent.console import make_console

SMALL = ["--model", "planner-tiny", "--layers", "6", "--segments", "8", "--segment-tokens", "5", "--query", "4"]
SLOW = [*SMALL, "--device", "orin", "--link", "0.05", "--schedule", "linear", "--average", "0.5"]


def run(*options: str) -> None:
    report(parser().parse_args(options), make_console())


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """What it says before it ends with exit code 2."""
    monkeypatch.setattr("sys.argv", ["pipeline", *options])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    return capsys.readouterr().err


def test_all_stages_on_one_time_axis(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(*SLOW, "--out", str(tmp_path))
    shown = capsys.readouterr().out
    assert all(stage in shown for stage in ("serial", "next_layer", "layer_balanced", "bound"))
    record = json.loads((tmp_path / "pipeline.json").read_text())
    schedules = {one["loading"]: one for one in record["schedules"]}
    spans = [schedules[name]["makespan"] for name in ("layer_balanced", "next_layer", "serial")]
    assert spans == sorted(spans) and spans[0] < spans[2]
    assert record["active_rows"][0] == 44 and len(record["times"]["mlp"]) == 6
    for one in schedules.values():
        assert one["makespan"] == max(event["end"] for event in one["events"])
        assert one["bytes"] == sum(44 - rows for rows in record["active_rows"]) * record["row_bytes"]
        assert one["bounds"]["simple"] <= one["bounds"]["tight"] <= one["makespan"] * (1 + 1e-9)
    assert (tmp_path / "gantt.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_command_gives_the_same_schedules(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run(*SLOW, "--loading", "next_layer", "--seed", "3", "--out", str(tmp_path / name))
    first, second = (json.loads((tmp_path / name / "pipeline.json").read_text()) for name in ("a", "b"))
    assert first["schedules"] == second["schedules"]


def test_a_sweep_shows_where_balancing_pays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    large = ["--model", "qwen2.5-14b", "--layers", "16", "--link", "1", "--schedule", "cosine", "--average", "0.3"]
    run(*large, "--sweep", "--markdown", "--out", str(tmp_path))
    points = json.loads((tmp_path / "pipeline.json").read_text())["sweep"]
    assert (points[0]["ratio"], points[-1]["ratio"]) == (0.125, 8)
    gains = [point["makespan"]["next_layer"] / point["makespan"]["layer_balanced"] for point in points]
    assert max(gains[3:-3]) > 1.15 and gains[0] == gains[-1] == pytest.approx(1)
    assert "| load / compute |" in capsys.readouterr().out


def test_measured_times_take_the_place_of_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "times.json"
    file.write_text(json.dumps({"attention": [1, 1, 1], "importance": [0, 0, 0], "mlp": [2, 2, 0]}))
    prompt = SMALL[4:]  # neither a model's layers nor its weights
    run("--model", "planner-tiny", *prompt, "--times", str(file), "--link", "shared", "--out", str(tmp_path))
    record = json.loads((tmp_path / "pipeline.json").read_text())
    assert [one["makespan"] for one in record["schedules"]] == [7, 7, 7]
    assert len(record["active_rows"]) == 3
    file.write_text(
        json.dumps(
            {"attention": [1, 1], "importance": [0, 0], "mlp": [2, 0], "active": [[0, 1], [1]], "row_bytes": 100}
        )
    )
    for options in (["--average", "0.5"], ["--seed", "5"], ["--model", "planner-tiny"]):
        assert f"{options[0]} means nothing" in refused(monkeypatch, capsys, *prompt, "--times", str(file), *options)


@pytest.mark.parametrize(
    ("method", "importance"),
    [("keep", "before"), ("keep", "beside"), ("cacheblend", "before"), ("epic", "before"), ("full_reuse", "before")],
)
def test_every_method_plays(method: str, importance: str, tmp_path: Path) -> None:
    slow = SLOW if method in FALLS else SLOW[:-4]  # without a schedule
    run(*slow, "--recompute", method, "--importance", importance, "--chunk", "0.001", "--out", str(tmp_path))
    record = json.loads((tmp_path / "pipeline.json").read_text())
    kinds = {(event["lane"], event["kind"]) for event in record["schedules"][0]["events"]}
    lanes = {"keep": {"importance" if importance == "beside" else "compute"}, "cacheblend": {"compute"}}
    assert {lane for lane, kind in kinds if kind == "importance"} == lanes.get(method, set())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--device", "abacus"], "device 'abacus'"),
        (["--link", "-1"], "use a bandwidth above 0"),
        (["--loading", "later"], "loading later is unknown"),
        (["--loading", "none"], "use serial, next_layer, layer_balanced"),
        (["--model", "gpt-9"], "model 'gpt-9'"),
        (["--chunk", "0"], "--chunk 0"),
        (["--average", "2"], "average=2"),
        (["--recompute", "epic", "--average", "0.5"], "--average means nothing: epic computes the same rows at every"),
        (["--recompute", "cacheblend", "--importance", "beside"], "--importance means nothing: cacheblend does not"),
        (["--times", "t.json"], "--layers means nothing: the times are those of --times"),
        (["--recompute", "epic", "--seed", "7"], "--seed means nothing: epic computes the same rows at every layer"),
        (["--times", "t.json", "--link", "5", "--device", "h200"], "--device means nothing: --times and --link say"),
        (["--sweep", "--link", "shared"], "nothing to sweep"),
    ],
)
def test_what_cannot_be_played_is_refused(
    options: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(monkeypatch, capsys, *SMALL, *options)


REAL = ["--measure", "--model", "planner-tiny", "--segments", "6", "--segment-tokens", "8", "--query", "4"]
FALLING = [*REAL, "--threads", "1", "--schedule", "linear", "--average", "0.4"]


def test_the_engine_runs_beside_the_simulator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its prefills move what they must, wait for the link, and are above what no schedule ends before."""
    run(*FALLING, "--ratio", "2", "--repeats", "3", "--out", str(tmp_path))
    shown = capsys.readouterr().out
    assert "layer_balanced" in shown and "loading 2 x computing" in shown
    (over,) = json.loads((tmp_path / "pipeline.json").read_text())["links"]
    assert over["ratio"] == pytest.approx(2)
    assert [one["loading"] for one in over["stages"]] == ["serial", "next_layer", "layer_balanced"]
    for one in over["stages"]:
        assert one["active_rows"][0] == 52 and one["active_rows"][-1] < 20
        for kind in ("measured", "simulated"):
            assert one[kind]["bytes"] == sum(52 - rows for rows in one["active_rows"]) * 2 * 192 * 2
        assert all(turn["bound"] <= turn["tight_bound"] <= turn["measured"] for turn in one["turns"])
        spans = sorted(turn["measured"] for turn in one["turns"])
        assert one["measured"]["makespan"] == spans[1]
    for turn in over["stages"][0]["turns"]:
        assert turn["measured"] >= one["measured"]["bytes"] / over["link"]["bandwidth"]  # all of it has to come
    assert (tmp_path / "gantt.png").read_bytes().startswith(b"\x89PNG")


def test_a_measured_sweep_walks_over_links(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    ("options", "said"),
    [
        (["--device", "h200"], "--device means nothing: --measure runs the engine here"),
        (["--times", "times.json"], "--times means nothing"),
        (["--ratio", "0"], "--ratio 0"),
        (["--ratio", "3", "--sweep"], "--ratio means nothing: --sweep goes through ratios"),
        (["--repeats", "0"], "--repeats 0"),
        (["--threads", "0"], "--threads 0"),
        (["--link", "shared"], "shared cannot be throttled"),
        (["--segments", "600"], "4804 rows of a vocabulary of 4096"),
        (["--recompute", "keep", "--average", "1"], "nothing has to be loaded"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    options: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(monkeypatch, capsys, *REAL, *options)


def test_times_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nowhere.json does not exist" in refused(monkeypatch, capsys, "--times", "nowhere.json")


def test_what_is_measured_needs_measuring(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--ratio means nothing" in refused(monkeypatch, capsys, *SMALL, "--ratio", "2")
