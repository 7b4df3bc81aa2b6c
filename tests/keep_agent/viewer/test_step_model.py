from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from benchmarks.viewer_trace import Size, entries
from keep_agent.errors import DataError
from keep_agent.rollout.trace import read_trace
from keep_agent.viewer.runs import Run
from keep_agent.viewer.step_model import StepView, step_json, step_view
from keep_agent.viewer.trace_index import EpisodeIndex
from planners.bundled import BUNDLED
from tests.keep_agent.viewer.traces import crash, end, opening, prompt, run_of, step, write


def steps_of(run: Run) -> list[tuple[EpisodeIndex, StepView]]:
    episodes = run.index.refresh().values()
    return [(index, step_view(run, index, number)) for index in episodes for number in range(len(index.positions))]


def test_texts_have_the_tokens_of_the_prompt(keep_run: Path) -> None:
    """The text of a segment has exactly its token ids in the trace."""
    tokenizer, run, count = PreTrainedTokenizerFast.from_pretrained(BUNDLED), run_of(keep_run), 0
    for episode, view in steps_of(run):
        tokens = run.index.entry(episode, view.number)["token_ids"]
        for segment in view.prompt.segments:
            encoded = tokenizer.encode(segment.text, add_special_tokens=False)
            assert encoded == tokens[segment.start : segment.stop]
            count += 1
    assert count > 100


def test_recorded_step_has_all_parts(keep_run: Path) -> None:
    views = [view for _, view in steps_of(run_of(keep_run))]
    assert {segment.state for view in views for segment in view.prompt.segments} >= {"recomputed", "fresh"}
    assert any(view.prompt.cold for view in views)
    assert any(segment.ranks for view in views for segment in view.prompt.segments)
    assert all(view.prompt.computes and view.scores and view.world.things for view in views)
    assert all(view.prompt.loads for view in views if not view.prompt.cold)
    assert all(view.prompt.ttft_ms == pytest.approx(sum(dict(view.prompt.parts).values()), abs=0.01) for view in views)
    assert [view.end["task"] for view in views if view.end] == [0, 1, 0, 1]


def test_run_without_a_model_has_no_prompts(random_run: Path) -> None:
    views = [view for _, view in steps_of(run_of(random_run))]
    assert views and all(view.prompt is None and view.scores == () and view.goal is not None for view in views)
    assert [(view.before, view.after) for view in views[:4]] == [(-1, 0), (0, 1), (1, 2), (2, 3)]


def test_missing_field_is_an_error(tmp_path: Path) -> None:
    broken = prompt()
    del broken["units"][0]["start"]
    run = run_of(write(tmp_path, [opening(), step(**prompt()), step(1, **broken)]))
    episode = run.index.episode("e")
    assert step_view(run, episode, 0).prompt is not None
    with pytest.raises(DataError, match=r"trace.jsonl:3 is not a valid step \(KeyError: 'start'\)"):
        step_view(run, episode, 1)


def test_end_and_crash_belong_to_their_steps(tmp_path: Path) -> None:
    run = run_of(write(tmp_path, [opening(), step(), step(1), end(True), step(0, task=1), crash()]))
    views = [view for _, view in steps_of(run)]
    assert [view.end is not None for view in views] == [False, True, False]
    assert [bool(view.crash) for view in views] == [False, False, True]
    assert views[0].goal is None, "a trace of an older version has no goal"


def test_synthetic_trace_has_the_fields_of_a_recorded_one(keep_run: Path) -> None:
    real = [entry for entry in read_trace(keep_run / "trace.jsonl") if entry["event"] == "step"]
    synthetic_steps = [entry for entry in entries(Size(3, 4, 10)) if entry["event"] == "step"]
    assert all(set(entry) == set(real[0]) for entry in synthetic_steps)
    assert set(synthetic_steps[0]["timings"]) == set(real[0]["timings"])
    for name in ("units", "segments", "hops"):
        assert set(synthetic_steps[0][name][0]) == set(next(entry[name][0] for entry in real if entry[name]))
    for name in ("loads", "computes"):
        assert len(synthetic_steps[0][name][0]) == len(next(entry[name][0] for entry in real if entry[name]))


def test_number_that_json_lacks_is_an_error(tmp_path: Path) -> None:
    """No browser can parse NaN."""
    run = run_of(write(tmp_path, [opening(), step(scores=[["wait", float("nan")]]), step(1)]))
    episode = run.index.episode("e")
    with pytest.raises(DataError, match=r"trace.jsonl:2 is not a valid step \(ValueError: Out of range"):
        step_json(run, episode, 0)
    assert json.loads(step_json(run, episode, 1))["number"] == 1
