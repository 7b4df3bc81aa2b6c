"""Retention command and recorded sessions, end to end on a random model."""

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
from eval.fidelity.deviation import PlannerGroup, make_planners, play_episodes
from eval.retention.__main__ import BASELINE, SETTING, report, summarise, variants
from eval.retention.forgetting import StepRow, tokens_since
from eval.sessions import entities
from eval.sessions import report as report_sessions
from keep_agent.config.factory import expert_oracle
from keep_agent.config.planner_factory import make_model, make_tokenizer
from keep_agent.errors import ConfigError
from memory.engine.transformers.engine import TransformersEngine
from planners.prompts.text import entity_names
from planners.training.retention.tool_sessions import read_sessions

if TYPE_CHECKING:
    import torch

    from eval.fidelity.deviation import SkillChoice
    from memory.prompt.report import Prefill

SMALL = ["eval.episodes=2", "env.stream=1", "env.max_steps=3", "prompt.encoder=hashed"]


def test_methods_are_compared_with_the_full_cache(tiny_model: Path, tmp_path: Path, capsys: object) -> None:
    out = tmp_path / "steps.jsonl"
    options = ["--methods", "streaming,moved:h2o+memory.construction.survivors=move,semantic", "--budget", "40"]
    arguments = [*options, "--history", "50", "--out", str(out), f"model={tiny_model}", "planner.reduce=mean", *SMALL]
    report(arguments)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert all(line.pop("sum") for line in lines)
    assert len(lines) == 2 and set(lines[0]) == {BASELINE, "streaming", "moved", "semantic"}
    for line in lines:
        for steps in zip(*line.values(), strict=True):
            full, streaming, h2o, semantic = (StepRow(*step) for step in steps)
            assert full.same_skill and full.kl == pytest.approx(0, abs=1e-9)
            assert full.live_rows == full.prompt_tokens and semantic.live_rows == semantic.prompt_tokens
            assert max(streaming.live_rows, h2o.live_rows) < full.live_rows
            assert streaming.live_reads < streaming.raw_reads and full.live_reads == full.raw_reads
        assert all(StepRow(*step).prefix_rows > 0 for step in line["streaming"][1:])
    before = out.read_bytes()
    report(arguments)  # resumes: all episodes are complete
    assert out.read_bytes() == before
    with pytest.raises(ConfigError, match="was made with other settings"):
        report([*arguments, "eval.seed=3"])


def test_a_file_of_other_weights_is_not_resumed(tiny_model: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    short = [f"model={model}", "eval.episodes=1", "env.stream=1", "env.max_steps=1", "prompt.encoder=hashed"]
    arguments = ["--methods", "streaming", "--budget", "40", "--out", str(tmp_path / "steps.jsonl"), *short]
    report(arguments)
    (model / "SHA256SUMS").unlink()
    tensors = load_file(model / "model.safetensors")
    save_file({name: 2 * tensor for name, tensor in tensors.items()}, model / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match="was made with other settings"):
        report(arguments)


class RecordedSteps:
    """Record of the transcript, cost and agreement of each decision."""

    def __init__(self) -> None:
        self.transcripts: list[list[int]] = []
        self.costs: list[tuple[int, int]] = []
        self.same: list[bool] = []

    def add(self, prefill: Prefill, reference: torch.Tensor, choice: SkillChoice) -> None:
        self.transcripts.append(prefill.layout.token_ids.tolist())
        self.costs.append((prefill.counts.prompt_tokens, prefill.reads.raw))
        self.same.append(choice.same)


def test_the_leaders_goal_query_is_no_cost_of_its_steps() -> None:
    """The other planners adopt the leader's goals, so the query that derives them must not count for it alone."""
    overrides = [*SETTING, "model=planner-tiny", "eval.episodes=1", "env.stream=1", "env.max_steps=1"]
    configs = compose_variants(["full_cache", "streaming:streaming+memory.retention.budget=2000"], overrides)
    records = {name: RecordedSteps() for name in configs}
    with TransformersEngine(make_model(configs["full_cache"].model, 0)) as engine:
        planners = make_planners(engine, make_tokenizer(configs["full_cache"].model, engine.model), configs)
        for _ in play_episodes(PlannerGroup(engine, planners, records, shared_transcript=True), configs["full_cache"]):
            pass  # a single step, whose transcript is too short for eviction
    assert records["full_cache"].costs == records["streaming"].costs and len(records["streaming"].costs) == 1


@pytest.mark.parametrize("leader", ["first method", pytest.param("expert", marks=pytest.mark.slow)])
def test_all_methods_decide_on_the_same_transcript(leader: str) -> None:
    """The transcript holds the leader's skills and goals even if a method would choose others."""
    overrides = [*SETTING, *SMALL, "env.max_steps=9"]
    methods = ["full_cache", "semantic", "streaming:streaming+memory.retention.budget=24"]
    configs = compose_variants(methods, overrides)
    setting = configs["full_cache"]
    oracle = expert_oracle(setting.env) if leader == "expert" else None
    records = {name: RecordedSteps() for name in configs}
    with TransformersEngine(make_model(setting.model, 0)) as engine:
        planners = make_planners(engine, make_tokenizer(setting.model, engine.model), configs)
        for _ in play_episodes(PlannerGroup(engine, planners, records, oracle, shared_transcript=True), setting):
            pass
    assert len(records["full_cache"].transcripts) == 18 and not all(records["streaming"].same)
    for name in ("semantic", "streaming"):
        assert records[name].transcripts == records["full_cache"].transcripts


def test_steps_count_by_the_length_of_the_leaders_transcript() -> None:
    step = StepRow(10, True, True, 9, 0.0, 5, 5, 10, 5, 1.0)
    leader = [[step, replace(step, prompt_tokens=99)]]
    steps = [[step, replace(step, prompt_tokens=60, same_skill=False, kl=1.0)]]
    row = summarise("m", steps, leader, 90, 8)
    assert (row.steps, row.same_skill, row.same_as_expert, row.kl, row.peak_request_tokens) == (1, 0.0, 1.0, 1.0, 60)
    assert (row.far_steps, row.far_same_skill) == (1, 0.0) and summarise("m", steps, leader, 90, 9).far_steps == 0
    assert summarise("m", steps, leader, 100, 8).same_skill is None


def test_distance_counts_the_tokens_after_the_last_mention() -> None:
    texts = [9], [2], [2, 3], [1, 2, 3, 2, 9], [7], [9, 1]
    assert [tokens_since([1, 2, 3, 2, 9], ids) for ids in texts] == [0, 1, 2, 0, 5, 5]
    assert entity_names("put mug 1 in sinkbasin 2") == ("mug_1", "sinkbasin_2")
    assert entity_names("done") == entity_names("find a mug") == ()


def test_the_budget_is_set_for_methods_that_evict() -> None:
    explicit = "snapkv+memory.retention.budget=9"
    assert variants(["h2o", "semantic", f"x:{explicit}"], 7, []) == [
        BASELINE, "h2o:h2o+memory.retention.budget=7", "semantic:semantic", f"x:{explicit}",
    ]  # fmt: skip


def test_the_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        report(["--help"])
    assert "--budget" in capsys.readouterr().out


def test_an_incomplete_last_line_is_removed(tmp_path: Path) -> None:
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


def test_a_file_without_lines_also_belongs_to_its_settings(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    with begin_lines(file, {"a": 1}):
        pass
    with pytest.raises(ConfigError, match="was made with other settings"), begin_lines(file, {"a": 2}):
        pass
    with begin_lines(file, {"a": 1}) as (out, lines):
        out.append([{"b": 1}])
    with begin_lines(file, {"a": 1}) as (_, again):
        assert not lines and again == [{"b": 1}]


def test_sessions_record_the_contents_of_each_turn(tiny_model: Path, tmp_path: Path) -> None:
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
    with pytest.raises(ConfigError, match=r"eval.shard=0/2 is not read here; keys that are read: env, memory"):
        report(["--methods", "h2o", "eval.shard=0/2"])
    for override in ("planner=h2o", "memory=h2o"):  # they would apply to all methods, full_cache included
        with pytest.raises(ConfigError, match=f"{override} is not read here; use --methods"):
            report(["--methods", "h2o", override])
    for override in ("eval.workers=2", "planner.reduce=mean"):
        with pytest.raises(ConfigError, match=f"{override} is not read here"):
            report_sessions(["--out", str(tmp_path / "sessions.jsonl"), override])
    assert not any(tmp_path.iterdir())


def test_entities_of_a_skill() -> None:
    assert entities("put mug 1 in cabinet 2") == ("mug_1", "cabinet_2")
    assert entities("done") == ("done",)
