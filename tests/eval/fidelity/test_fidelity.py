"""Fidelity tables and curve of a short episode, with the laws beside them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eval.common.variants import compose_variants
from eval.fidelity.__main__ import CURVE_SETTING, METHODS, parser, report
from eval.fidelity.agreement import Point, cheapest, reach_lines, variants_of
from eval.fidelity.laws import LAWS, RandomPrompt, plain_logits, relative_gap
from keep_agent.console import make_console
from keep_agent.errors import ConfigError
from memory.engine.models.tiny_models import FAMILIES, tiny_model
from memory.engine.transformers.engine import TransformersEngine
from memory.loading.serial import Serial
from memory.recompute.full import Full

EXACT = 1e-5


def fidelity(*arguments: str) -> None:
    report(parser().parse_intermixed_args([*arguments]), make_console())


@pytest.fixture(scope="module")
def table(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    file = tmp_path_factory.mktemp("fidelity") / "table.json"
    overrides = ["prompt.encoder=hashed", "env.stream=1", "env.max_steps=8", "model.dtype=bfloat16"]
    arguments = [*overrides, "--families", "qwen3", "--tokenizer", str(tiny_model)]
    fidelity(*arguments, "--model", str(tiny_model), "--json", str(file))
    return json.loads(file.read_text())


def test_only_exact_methods_have_no_deviation(table: dict) -> None:
    rows = {row["method"]: row for row in table["deviations"] if row["model"] == "qwen3"}
    assert set(rows) == set(METHODS)
    for method in ("full_recompute", "prefix_cache"):
        assert rows[method]["relative"] < EXACT and rows[method]["same_token"] == 1.0 and rows[method]["kl"] < EXACT
    assert rows["full_reuse"]["relative"] > 1e-2, "the prompts must make a difference"
    assert rows["keep"]["mean_abs"] < rows["full_reuse"]["mean_abs"]
    assert rows["full_recompute"]["same_skill"] == rows["full_recompute"]["computed_ratio"] == 1.0


def test_computed_ratios_have_the_expected_order(table: dict) -> None:
    ratios = {row["method"]: row["computed_ratio"] for row in table["deviations"] if row["model"] == "qwen3"}
    assert ratios["full_reuse"] < ratios["keep"] < ratios["full_recompute"]


def test_a_trained_model_is_measured_in_its_configured_dtype(table: dict) -> None:
    rows = [row for row in table["deviations"] if row["model"] != "qwen3"]
    assert [row["method"] for row in rows] == list(METHODS)
    assert EXACT < rows[0]["relative"] < 5e-2  # bfloat16


def test_the_laws_are_in_the_table(table: dict) -> None:
    assert set(table["laws"]["qwen3"]) == set(LAWS)
    assert all(figure < EXACT for figure in table["laws"]["qwen3"].values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--methods", "expert", "--families", "qwen2"), "method expert has no memory"),
        (("--families", "none"), "nothing to measure"),
        (("--methods", "none"), "nothing to measure"),
        (("--families", "qwen2", "eval.episodes=0"), "eval.episodes=0"),
        (("planner=keep", "--methods", "keep"), "--methods is for the tables"),
        (("planner=keep", "--families", "qwen2"), "--families is for the tables"),
        (("planner=keep", "--tokenizer", "x"), "--tokenizer is for the tables"),
        (("--plot", "x.png"), "--plot is for the curve"),
        (("--ratios", "own"), "--ratios is for the curve"),
        (("planner=keep", "planner=epic"), "planner=keep planner=epic is not a list of methods"),
        (("planner=,",), "planner=, is not a list of methods"),
        (("planner=keep", "model=planner-tiny", "--model", "x"), "--model x is not the only model"),
        (("eval.trace=false",), "eval.trace=false is not read here; keys that are read: env, memory.* eval.threads"),
        (("memory=keep",), "memory=keep is not read here; use .*--methods"),
        (("model=x",), "use --model"),
        (("model.dtype=float32",), "model.dtype=float32 does not apply to random models"),
        (("--families", "none", "--model", "x", "--tokenizer", "x"), "--tokenizer applies to random models"),
    ],
)
def test_invalid_options_are_refused(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fidelity(*arguments)


def test_the_number_of_torch_threads_is_configurable(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    overrides = ["prompt.encoder=hashed", "env.stream=1", "env.max_steps=1", "eval.threads=3"]
    options = ["--families", "none", "--model", str(tiny_model), "--methods", "full_recompute"]
    fidelity(*overrides, *options)
    fidelity(*overrides, "planner=full_recompute", *options[2:4])
    assert threads == [3, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("planner=keep", "--plot", "c.txt"), r"c.txt is not a known type of figure; .*\.png"),
        (("planner=keep", "--plot", "folder.png"), "folder.png is a folder"),
        (("planner=keep", "--json", "folder.png"), "folder.png is a folder"),
        (("--families", "none", "--json", "folder.png"), "folder.png is a folder"),
    ],
)
def test_unwritable_outputs_are_refused_before_the_model_is_loaded(
    options: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ConfigError, match=message):
        fidelity(*options, "--model", "no-such/model")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("law", LAWS)
def test_every_law_holds_for_every_family(law: str, family: str) -> None:
    with TransformersEngine(tiny_model(family, dtype=torch.float32), "inline") as engine:
        assert LAWS[law](engine) < EXACT


@pytest.mark.parametrize("family", FAMILIES)
def test_the_plain_forward_handles_positions_with_gaps(family: str) -> None:
    """Coupled positions have gaps where retrieval skipped rows."""
    with TransformersEngine(tiny_model(family, dtype=torch.float32), "inline") as engine:
        layout = RandomPrompt(engine).layout([None] * 4)
        gaps = replace(layout, positions=layout.positions + 40 * (torch.arange(layout.rows) > 30))
        logits = engine.prefill(gaps, Full(), Serial()).logits[0]
        assert relative_gap(logits, plain_logits(engine, gaps)) < EXACT
        assert relative_gap(logits, plain_logits(engine, layout)) > EXACT


def test_methods_without_a_single_prompt_are_refused(tiny_model: Path) -> None:
    per_layer = "memart+memory.retrieval.layers=each"
    arguments = ["prompt.encoder=hashed", "--families", "none", "--model", str(tiny_model), "--methods", per_layer]
    with pytest.raises(ConfigError, match=r"--methods memart.*layers=each.*planner=NAME"):
        fidelity(*arguments)


def test_the_curve_compares_methods_whose_prompts_differ(tmp_path: Path) -> None:
    file = tmp_path / "points.json"
    methods = "planner=full_reuse,prefix_cache,memart+memory.retrieval.layers=each"
    overrides = [methods, "env.stream=1", "eval.episodes=1", "env.max_steps=3", "prompt.encoder=hashed"]
    fidelity(*overrides, "--ratios", "own", "--json", str(file))
    baseline, *methods = json.loads(file.read_text())["curve"]
    assert baseline["kl"] == 0 and all(point["kl"] > 1e-6 for point in methods), "a transcript is another prompt"


def test_the_curve_compares_methods_with_full_recomputation(tiny_model: Path, tmp_path: Path) -> None:
    file, plot = tmp_path / "new" / "curve.json", tmp_path / "newer" / "curve.png"
    overrides = [
        "planner=full_reuse,keep", "env.stream=1", "eval.episodes=2", "env.max_steps=6", "prompt.encoder=hashed",
    ]  # fmt: skip
    options = ["--model", str(tiny_model), "--ratios", "0.1,0.5", "--json", str(file), "--plot", str(plot)]
    fidelity(*overrides, *options)
    points = json.loads(file.read_text())["curve"]
    assert [(point["method"], point["value"]) for point in points] == [
        ("full_recompute", 0), ("full_reuse", 0), ("keep", 0.1), ("keep", 0.5)
    ]  # fmt: skip
    baseline, reuse, *keep = points
    assert baseline["same_skill"] == 1.0 and baseline["computed_ratio"] == 1.0
    assert len({point["steps"] for point in points}) == 1
    assert keep[0]["recomputed_ratio"] == pytest.approx(0.1, abs=0.1) and reuse["recomputed_ratio"] == 0
    assert keep[0]["computed_ratio"] < keep[1]["computed_ratio"]
    assert keep[1]["kl"] < reuse["kl"] and baseline["kl"] < 1e-3
    assert plot.read_bytes().startswith(b"\x89PNG")


def point(method: str, value: float, computed: float, same: float) -> Point:
    variant = f"{method}_{value:g}:{method}+a.knob={value:g}"
    return Point(method, variant, "a.knob", value, 9, computed, value, same, None, 0.1, None)


def test_reach_names_the_cheapest_point_with_enough_agreement() -> None:
    baseline = Point("full_recompute", "full_recompute", "", 0, 9, 1.0, 0.0, 1.0, None, 0.0, None)
    points = [baseline, point("keep", 0.1, 0.2, 0.97), point("keep", 0.3, 0.4, 0.99), point("keep", 0.2, 0.3, 0.98)]
    points += [point("epic", 1, 0.1, 0.9), point("epic", 2, 0.2, 0.95)]
    assert cheapest(points, 0.98) == [points[3], "epic"]
    *lines, command = reach_lines(points, 0.98)
    assert lines == [
        "98 % agreement: keep_0.2:keep+a.knob=0.2 (98.0 %, computes 0.30)",
        "98 % agreement: epic does not reach it",
    ]
    assert command == """python -m eval.latency 'latency.planners=[full_recompute,"keep_0.2:keep+a.knob=0.2"]'"""
    assert reach_lines(points[:1], 0.98) == [] and len(reach_lines(points[:2], 0.98)) == 1


@pytest.mark.parametrize("options", [("--reach", "0"), ("--reach", "101"), ("--reach", "much"), ("--ratios", "0.1,7")])
def test_values_out_of_range_are_refused(options: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(options)
    assert options[1] in capsys.readouterr().err


def test_a_curve_uses_twenty_houses_of_two_tasks() -> None:
    config = compose_variants(["keep"], CURVE_SETTING)["keep"]
    assert (config.eval.episodes, config.env.stream) == (20, 2)
    assert (config.env.skills, config.env.observability, config.prompt.style) == ("grounded", "partial", "linked")


def test_with_own_ratios_every_method_is_used_as_configured(tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "points.json"
    overrides = ["planner=epic,keep", "env.stream=1", "eval.episodes=1", "env.max_steps=3", "prompt.encoder=hashed"]
    options = ["--model", str(tiny_model), "--ratios", "own", "--json", str(file)]
    fidelity(*overrides, *options)
    points = json.loads(file.read_text())["curve"]
    labels = [(point["method"], point["knob"]) for point in points]
    assert labels == [("full_recompute", ""), ("epic", ""), ("keep", "")]


def test_a_knob_that_the_method_sets_is_not_varied() -> None:
    texts = ["epic", "fixed:cacheblend+memory.recompute.ratio=0.2", "keep+memory.recompute.max_hops=0"]
    configs = compose_variants(texts, CURVE_SETTING).items()
    bases = [text.partition(":")[2] or text for text in texts]
    pairs = zip(bases, configs, strict=True)
    epic, cacheblend, keep = (variants_of(name, base, config, [0.1, 0.2]) for base, (name, config) in pairs)
    assert [variant.text for variant in cacheblend] == ["fixed:cacheblend+memory.recompute.ratio=0.2"]
    assert len(epic) > 2 and [variant.value for variant in keep] == [0.1, 0.2]
