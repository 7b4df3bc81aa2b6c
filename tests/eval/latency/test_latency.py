"""Command ``eval.latency``: output, files, refusals and resuming."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from eval.latency import __main__ as latency
from eval.latency.report.rows import CELLS, LatencyFolder
from eval.latency.report.summary import BASELINES, STEP_KINDS
from keep_agent.guard import BAD_INPUT
from keep_agent.rollout.results import PARTS
from keep_agent.rollout.run_folder import SUMMARY
from tests.envs.alfred.trials import usual, write
from tests.eval.latency.conftest import QUICK
from tests.eval.workers.runs import assert_refused

Call = Callable[..., tuple[int, str, str]]
STEPS = "latency.steps=3", "latency.warmup=2", "latency.candidates=4", "latency.plot=false"


@pytest.fixture
def call(call: Call) -> Call:
    """Call the command with small settings."""
    return partial(call, latency.main, *QUICK, *STEPS)


def the_run(under: str = "outputs") -> Path:
    (run,) = Path(under).iterdir()
    return run


def groups(folder: Path) -> list[dict]:
    return json.loads((folder / SUMMARY).read_text())["groups"]


def test_a_run_prints_tables_and_writes_a_summary(call: Call, tiny_model: Path) -> None:
    options = f"latency.models={tiny_model}", "latency.segments=[4,8]", "latency.plot=true"
    planners = 'latency.planners=[full_recompute,cacheblend,keep,full_cache,"serial:keep+memory/loading=serial"]'
    code, out, err = call(*options, planners)
    assert (code, err) == (0, "")
    for title in ("time to the first token", "times faster", "by kind", "parts of a step", "work and memory", "growth"):
        assert title in out
    summary = json.loads((the_run() / SUMMARY).read_text())
    assert summary["machine"]["cores"] >= 1 and summary["versions"]["torch"]
    (group,) = summary["groups"]
    assert [cell["cell"]["segments"] for cell in group["cells"]] == [4, 8]
    assert set(group["cells"][0]["rates"]) == {"flops", "moved", "carried"} and group["cells"][0]["refused"] == ""
    for cell in group["cells"]:
        standings = {item["name"]: item for item in cell["standings"]}
        assert list(standings) == ["full_recompute", "cacheblend", "keep", "full_cache", "serial", "transformers"]
        assert cell["kinds"] == {"all": 3, "warm": 2, "no_flip": 2, "flip": 0, "cold": 1}
        for item in standings.values():
            assert set(item["times"]["ttft_ms"]) == set(STEP_KINDS) and set(item["ratios"]) == set(BASELINES)
            assert item["times"]["ttft_ms"]["all"]["p50"] > 0 and item["floor"]["all"]["times"] > 0
        assert standings["full_recompute"]["ratios"]["full_recompute"]["paired"] == 1.0
        assert standings["full_recompute"]["computed_ratio"] == standings["transformers"]["computed_ratio"] == 1.0
        rows = {name: item["counts"]["prompt_tokens"] for name, item in standings.items()}
        assert len({rows[name] for name in ("full_recompute", "cacheblend", "keep", "transformers")}) == 1
        assert rows["full_cache"] > rows["keep"] and standings["full_cache"]["prompt"] == "append"
    assert group["growth"]["keep"]["sizes"] == 2
    assert (the_run() / "latency.png").read_bytes().startswith(b"\x89PNG")


def test_parts_add_up_and_prompts_hold_the_given_segments(call: Call, tiny_model: Path) -> None:
    call(f"latency.models={tiny_model}", "latency.segments=6", "latency.segment_tokens=9", "latency.planners=keep")
    (result,) = LatencyFolder.read(the_run())
    keep = next(run for run in result.runs if run.name == "keep")
    for step in keep.steps:
        assert sum(step.numbers.parts[part] for part in PARTS) == pytest.approx(step.numbers.ttft_ms, abs=0.01)
        assert step.numbers.memory_tokens == 6 * 9
    assert [step.numbers.cold for step in keep.steps] == [True, False, False]
    assert keep.steps[0].numbers.flips > 0, "old tasks are static from the first step"
    changed = [step.numbers.memory_tokens - step.numbers.hit_tokens for step in keep.steps[1:]]
    assert changed == [9, 9], "one segment changes per step"


def test_without_scoring_the_decision_ends_with_the_prompt(call: Call, tiny_model: Path) -> None:
    code, out, _ = call(f"latency.models={tiny_model}", "latency.planners=keep", "latency.score=false")
    assert code == 0 and "no candidates were scored" in out
    (result,) = LatencyFolder.read(the_run())
    assert {step.numbers.score_tokens for run in result.runs for step in run.steps} == {0}


def test_tiers_store_blocks_and_markdown_is_printed(call: Call, tiny_model: Path) -> None:
    tiers = "latency.tiers=[ram,quantized,disk]", "latency.planners=[full_recompute,keep,prefix_cache]"
    code, out, _ = call(f"latency.models={tiny_model}", *tiers, "latency.markdown=true")
    assert code == 0 and "| segments |" in out and "promises exact rows" in out
    ram, quantized, disk = groups(the_run())
    stored = [group["cells"][0]["standings"][1]["stored"] for group in (ram, quantized, disk)]
    assert stored[1] < stored[0] and all(size > 0 for size in stored)
    refusals = {summary["name"]: summary["refused"] for summary in quantized["cells"][0]["standings"]}
    assert refusals["prefix_cache"] and not refusals["keep"]


def test_cells_that_do_not_fit_are_refused_with_numbers(call: Call, tiny_model: Path) -> None:
    models = f"latency.models=[qwen2.5-32b,{tiny_model}]", "latency.planners=keep"
    code, out, _ = call(*models, "latency.segments=[4,600]", "eval.seed=1")
    assert code == 0
    large, small = groups(the_run())
    assert all("GiB" in cell["refused"] for cell in large["cells"]), "a machine with 70 GiB needs a larger shape here"
    fits, long = small["cells"]
    assert fits["standings"][0]["times"] and "4096 positions" in long["standings"][0]["refused"]
    assert "refused" in out


@pytest.mark.usefixtures("garbage_stays")
def test_an_interrupted_run_resumes_the_other_cells(
    call: Call, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eval.latency.cells import CellRunner

    arguments = f"latency.models={tiny_model}", "latency.planners=keep", "latency.churn=[0,1,2]"
    started: list[int] = []
    run = CellRunner.run

    def interrupting(self: CellRunner, index: int, *rest: object) -> object:
        started.append(index)
        if len(started) == 2:
            raise KeyboardInterrupt
        return run(self, index, *rest)

    monkeypatch.setattr(CellRunner, "run", interrupting)
    code, out, _ = call(*arguments)
    folder = the_run()
    assert code == 130 and f"eval.resume={folder.resolve()}" in out.replace("\n", "")
    first = (folder / CELLS).read_text()
    code, out, err = call(*arguments, f"eval.resume={folder}", "latency.markdown=true")
    assert (code, err) == (0, "") and "| segments |" in out
    assert started == [0, 1, 1, 2] and (folder / CELLS).read_text().startswith(first)
    assert [group["cells"][0]["cell"]["churn"] for group in groups(folder)] == [0, 1, 2]
    assert_refused(call(*arguments, f"eval.resume={folder}", "latency.steps=4"), "latency.steps=4 (was 3)")


def test_a_run_is_not_resumed_with_other_episodes(call: Call, tiny_model: Path, tmp_path: Path) -> None:
    """Otherwise one table would mix times of different prompts."""
    first, *_, last = usual()
    write(tmp_path / "data", "valid_seen", [first])
    arguments = f"latency.models={tiny_model}", "latency.planners=keep", f"env.data={tmp_path / 'data'}"
    assert call(*arguments, "env.split=valid_seen")[0] == 0
    (tmp_path / "data").rename(tmp_path / "before")
    write(tmp_path / "data", "valid_seen", [last])
    code, _, err = call(*arguments, f"eval.resume={the_run()}")
    assert code == BAD_INPUT and "replays episodes that are no longer the first of the data; start a new run" in err


BAD = [
    ("planner=keep", "latency.planners"),
    ("memory/storage=disk", "latency.tiers"),
    ("model.dtype=float32", "latency.dtypes"),
    ("prompt.budget=3", "latency.segments"),
    ("latency.segments=1", "latency.segments=1"),
    ("latency.churn=often", "or alfred"),
    ("latency.dtypes=int3", "bfloat16"),
    ("latency.planners=[keep,keep]", "names a value twice"),
    ("latency.planners=transformers", "no planner with a memory"),
    ("latency.planners=wizard", "choose one of"),
    ("latency.planners=['keep+prompt.style=linked']", "methods may differ only in"),
    ("latency.tiers=tape", "choose one of"),
    ("latency.models=/no/where", "/no/where is not a configured model"),
    ("latency.store=2", "fewer than latency.segments"),
    ("latency.colour=red", "latency.colour"),
    ("latency.score=perhaps", "true or false"),
    ("env.split=nowhere", "train, valid, test"),
]


@pytest.mark.parametrize(("override", "words"), BAD, ids=[override for override, _ in BAD])
def test_bad_input_is_one_line_and_nothing_on_disk(call: Call, override: str, words: str) -> None:
    assert_refused(call(override), words)
    assert not Path("outputs").exists()


def test_a_run_without_timed_cells_fails(call: Call) -> None:
    Path("empty").mkdir()
    Path("empty/config.json").write_text("{}")
    code, _, err = call("latency.models=./empty", "latency.planners=keep")
    assert code == BAD_INPUT and "nothing could be timed" in err and "./empty" in err
