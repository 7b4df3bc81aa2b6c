"""Costs of forgetting, and sessions to train on: end to end on a random model."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from safetensors.torch import load_file, save_file

from eval.common.episode_lines import begin_lines
from eval.common.variants import compose_variants
from eval.dataset.session_recorder import entities
from eval.fidelity.deviation import Shadow, make_planners, play
from eval.retention.__main__ import RULER, SETTING, parser, report, summarise, variants
from eval.retention.forgetting import Step, distance
from eval.sessions import report as report_sessions
from keep_agent.config.factory import expert_oracle
from keep_agent.config.planner_factory import make_model, make_tokenizer
from keep_agent.errors import ConfigError
from memory.engine.transformers.engine import TransformersEngine
from planners.prompts.text import entity_names
from planners.training.retention.tool_sessions import read_sessions

if TYPE_CHECKING:
    import torch

    from eval.fidelity.deviation import Choice
    from memory.prompt.report import Prefill

SMALL = ["eval.episodes=2", "env.stream=1", "env.max_steps=3", "prompt.encoder=hashed"]


def test_methods_are_measured_beside_the_full_cache(tiny_model: Path, tmp_path: Path, capsys: object) -> None:
    out = tmp_path / "steps.jsonl"
    options = ["--methods", "streaming,moved:h2o+memory.construction.survivors=move,semantic", "--budget", "40"]
    given = [*options, "--history", "50", "--out", str(out), f"model={tiny_model}", "planner.reduce=mean", *SMALL]
    report(given)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert all(line.pop("sum") for line in lines)
    assert len(lines) == 2 and set(lines[0]) == {RULER, "streaming", "moved", "semantic"}
    for line in lines:
        for steps in zip(*line.values(), strict=True):
            full, streaming, moved, semantic = (Step(*step) for step in steps)
            assert full.same_skill and full.kl == pytest.approx(0, abs=1e-9)
            assert full.live == full.prompt and semantic.live == semantic.prompt
            assert max(streaming.live, moved.live) < full.live
            assert streaming.live_reads < streaming.raw_reads and full.live_reads == full.raw_reads
        assert all(Step(*step).prefix > 0 for step in line["streaming"][1:])
    before = out.read_bytes()
    report(given)  # goes on: nothing is left to do
    assert out.read_bytes() == before
    with pytest.raises(ConfigError, match="was made with other settings"):
        report([*given, "eval.seed=3"])


def test_steps_of_other_weights_are_not_gone_on_with(tiny_model: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    short = [f"model={model}", "eval.episodes=1", "env.stream=1", "env.max_steps=1", "prompt.encoder=hashed"]
    given = ["--methods", "streaming", "--budget", "40", "--out", str(tmp_path / "steps.jsonl"), *short]
    report(given)
    (model / "SHA256SUMS").unlink()
    tensors = load_file(model / "model.safetensors")
    save_file({name: 2 * tensor for name, tensor in tensors.items()}, model / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match="was made with other settings"):
        report(given)


class Lengths:
    """Tokens that each decision was charged with."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def add(self, prefill: Prefill, reference: torch.Tensor, choice: Choice) -> None:
        self.seen.append((prefill.counts.prompt_tokens, prefill.reads.raw))


def test_what_the_leader_asks_aside_is_charged_to_nobody() -> None:
    """The others take over what a task asks for, so the prompt that asked is no cost of the first method alone."""
    overrides = [*SETTING, "model=planner-tiny", "eval.episodes=1", "env.stream=1", "env.max_steps=1"]
    configs = compose_variants(["full_cache", "streaming:streaming+memory.retention.budget=2000"], overrides)
    kept = {name: Lengths() for name in configs}
    with TransformersEngine(make_model(configs["full_cache"].model, 0)) as engine:
        planners = make_planners(engine, make_tokenizer(configs["full_cache"].model, engine.model), configs)
        for _ in play(Shadow(engine, planners, kept, common=True), configs["full_cache"]):
            """One step: nothing is forgotten in so short a transcript."""
    assert kept["full_cache"].seen == kept["streaming"].seen and len(kept["streaming"].seen) == 1


class Transcripts:
    """The text behind every decision."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []
        self.same: list[bool] = []

    def add(self, prefill: Prefill, reference: torch.Tensor, choice: Choice) -> None:
        self.seen.append(prefill.layout.token_ids.tolist())
        self.same.append(choice.same)


@pytest.mark.parametrize("led", ["by the first", pytest.param("by the expert", marks=pytest.mark.slow)])
def test_all_methods_decide_on_the_same_transcript(led: str) -> None:
    """The leader's skill and what it was for, although a method would have said otherwise."""
    overrides = [*SETTING, *SMALL, "env.max_steps=9"]
    methods = ["full_cache", "semantic", "streaming:streaming+memory.retention.budget=24"]
    configs = compose_variants(methods, overrides)
    setting = configs["full_cache"]
    oracle = expert_oracle(setting.env) if led == "by the expert" else None
    kept = {name: Transcripts() for name in configs}
    with TransformersEngine(make_model(setting.model, 0)) as engine:
        planners = make_planners(engine, make_tokenizer(setting.model, engine.model), configs)
        for _ in play(Shadow(engine, planners, kept, oracle, common=True), setting):
            """Both episodes."""
    assert len(kept["full_cache"].seen) == 18 and not all(kept["streaming"].same)
    assert kept["semantic"].seen == kept["streaming"].seen == kept["full_cache"].seen


def test_steps_count_by_the_full_caches_length() -> None:
    step = Step(10, True, True, 9, 0.0, 5, 5, 10, 5, 1.0)
    led = [[step, replace(step, prompt=99)]]
    own = [[step, replace(step, prompt=60, same_skill=False, kl=1.0)]]
    row = summarise("m", own, led, 90, 8)
    assert (row.steps, row.same_skill, row.right, row.kl, row.peak_request_tokens) == (1, 0.0, 1.0, 1.0, 60)
    assert (row.far_steps, row.far_same) == (1, 0.0) and summarise("m", own, led, 90, 9).far_steps == 0
    assert summarise("m", own, led, 100, 8).same_skill is None


def test_how_far_away_something_was_mentioned() -> None:
    assert [distance([1, 2, 3, 2, 9], ids) for ids in ([9], [2], [2, 3], [1, 2, 3, 2, 9], [7], [9, 1])] == [
        0,
        1,
        2,
        0,
        5,
        5,
    ]
    assert (
        entity_names("put mug 1 in sinkbasin 2") == ("mug_1", "sinkbasin_2")
        and entity_names("done") == entity_names("find a mug") == ()
    )


def test_budgets_go_to_those_that_forget() -> None:
    own = "snapkv+memory.retention.budget=9"
    assert variants(["h2o", "semantic", f"x:{own}"], 7, []) == [
        RULER, "h2o:h2o+memory.retention.budget=7", "semantic:semantic", f"x:{own}",
    ]  # fmt: skip


def test_the_command_has_help() -> None:
    assert "--budget" in parser().format_help()


def test_half_a_line_is_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    with begin_lines(file, {"a": 1}) as (out, lines):
        assert lines == []
        out.append([{"b": 1}])
    with file.open("a") as stream:
        stream.write('{"half')
    with begin_lines(file, {"a": 1}) as (out, lines):
        assert lines == [{"b": 1}]
        out.append([{"b": 2}])
        with pytest.raises(ConfigError, match=r"lines.jsonl is being written by another process"):
            begin_lines(file, {"a": 1}).__enter__()
    with begin_lines(file, {"a": 1}) as (_, lines):
        assert lines == [{"b": 1}, {"b": 2}]


def test_a_file_that_was_begun_belongs_to_its_settings_without_a_line_too(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    with begin_lines(file, {"a": 1}):
        pass
    with pytest.raises(ConfigError, match="was made with other settings"), begin_lines(file, {"a": 2}):
        pass
    with begin_lines(file, {"a": 1}) as (out, lines):
        out.append([{"b": 1}])
    with begin_lines(file, {"a": 1}) as (_, again):
        assert not lines and again == [{"b": 1}]


def test_sessions_tell_what_each_turn_brought(tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "sessions.jsonl"
    report_sessions(["--out", str(out), f"model={tiny_model}", *SMALL])
    sessions = list(read_sessions(out, lambda text: []))
    assert len(sessions) == 2
    for session in sessions:
        first, *later = session.turns
        assert first.begins and first.instruction > 3 and first.query <= len(first.ids)
        assert not any(turn.begins or turn.instruction for turn in later)
        assert all(turn.arguments and turn.ids for turn in session.turns)


def test_settings_that_are_not_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"eval.shard=0/2 is not read here; these keys are: env, memory"):
        report(["--methods", "h2o", "eval.shard=0/2"])
    for override in ("planner=h2o", "memory=h2o"):  # of all methods, the full cache too
        with pytest.raises(ConfigError, match=f"{override} is not read here; use --methods"):
            report(["--methods", "h2o", override])
    for override in ("eval.workers=2", "planner.reduce=mean"):
        with pytest.raises(ConfigError, match=f"{override} is not read here"):
            report_sessions(["--out", str(tmp_path / "sessions.jsonl"), override])
    assert not any(tmp_path.iterdir())


def test_a_skill_is_about_entities() -> None:
    assert entities("put mug 1 in cabinet 2") == ("mug_1", "cabinet_2")
    assert entities("done") == ("done",)
