"""Recall: probes that only attention between lines can answer, the same for every method."""

from __future__ import annotations

import json
import random
import re
from itertools import pairwise, product
from pathlib import Path

import pytest
import torch

from eval.common.intervals import wilson
from eval.common.variants import compose_variants
from eval.recall.__main__ import SETTING, cells_of, parser, report
from eval.recall.cells import Cell, Probe
from eval.recall.layer_signals import SIGNALS, watch
from eval.recall.prober import Prober
from eval.recall.scores import Score, mark_table
from keep_agent.console import make_console
from keep_agent.errors import ConfigError
from memory.engine.models.load import load_model
from memory.engine.models.tokenizer import load_tokenizer
from memory.engine.transformers.engine import TransformersEngine
from memory.prompt.report import Prefill
from memory.session import MemorySession
from planners.prompts.formats import make_format
from planners.tiny.checkpoint import BUNDLED
from planners.training.recall_probes import CUES, GREATEST, KINDS, LEAST, make_probe, make_scene

METHODS = "full_recompute,full_reuse,prefix_cache,all:keep+memory=keep+memory.recompute.schedule.average=1"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    """The bundled planner on a few needles."""
    folder = tmp_path_factory.mktemp("recall")
    options = ["--methods", METHODS, "--kinds", "needle", "--cues", "after", "--segments", "8,24", "--trials", "12"]
    report(parser().parse_intermixed_args([*options, "--ranks", "3", "--out", str(folder)]), make_console())
    return json.loads((folder / "recall.json").read_text()), folder


def test_the_planner_answers_and_reuse_cannot(found: tuple[dict, Path]) -> None:
    rates = {one["method"]: one for one in found[0]["scores"] if one["cell"]["segments"] == 24}
    full, reuse = rates["full_recompute"], rates["full_reuse"]
    assert full["accuracy"] > 0.6 and reuse["accuracy"] < full["accuracy"] - 0.4
    assert full["gap"] is None and reuse["gap"]["mean"] == pytest.approx(reuse["accuracy"] - full["accuracy"])
    assert full["computed_ratio"] == 1 and reuse["computed_ratio"] < 0.1
    assert reuse["prefill_tokens"] == 2  # where mug_2


def test_recomputing_all_of_it_answers_as_well(found: tuple[dict, Path]) -> None:
    for size in (8, 24):
        rates = {one["method"]: one["accuracy"] for one in found[0]["scores"] if one["cell"]["segments"] == size}
        assert rates["all"] == rates["full_recompute"]


@pytest.mark.slow
def test_memory_longer_than_the_model_reaches_back_only_where_positions_are_decoupled(tmp_path: Path) -> None:
    """The lines lie behind more filler than the model has positions for."""
    top = "memory.retrieval.top_k=24"
    methods = f"memart:memart+{top},coupled:memart+{top}+memory.construction.positions=coupled"
    options = ["--methods", methods, "--kinds", "needle", "--cues", "after", "--segments", "12", "--trials", "4"]
    report(parser().parse_intermixed_args([*options, "--filler", "1050", "--out", str(tmp_path)]), make_console())
    rates = {one["method"]: one for one in json.loads((tmp_path / "recall.json").read_text())["scores"]}
    assert rates["memart"]["accuracy"] >= rates["coupled"]["accuracy"] + 0.3
    assert rates["memart"]["prefill_tokens"] == 2


def test_what_is_stored_for_one_probe_is_gone_before_the_next(tiny_model: Path) -> None:
    """A pool that holds the lines of one probe holds those of each: left there, they would push later ones out."""
    cell, lines = Cell("two_hop", "after", 20), 20 * 30  # a line has at most 30 tokens of this tokenizer
    with TransformersEngine(load_model(str(tiny_model), "float32")) as engine:
        capacity = lines * engine.info.bytes_per_token
        pools = ("sparsex", f"small:sparsex+memory.pinned.capacity_bytes={capacity}")
        configs = compose_variants(pools, SETTING)
        prober = Prober(engine, make_format("default", load_tokenizer(str(tiny_model))), configs)
        for trial in range(4):
            large, small = prober.ask(cell, trial, 0)
            assert large.computed_ratio == small.computed_ratio < 0.9


@pytest.mark.parametrize("method", ["sparsex", "sparsex_hops"])
def test_lines_that_cannot_be_stored_together_are_refused_before_anything_is_asked(method: str) -> None:
    """They would be computed anew without a word. The message names a capacity that works."""
    options = ["--kinds", "two_hop", "--cues", "after", "--segments", "20", "--trials", "1"]

    def ask(capacity: int) -> None:
        named = f"{method}+memory.pinned.capacity_bytes={capacity}"
        report(parser().parse_args(["--methods", named, *options]), make_console())

    with pytest.raises(ConfigError, match=f"{method}.* stores.* pool of 100000; add .memory.pinned.capacity") as caught:
        ask(100_000)
    enough = int(re.search(r"add .memory.pinned.capacity_bytes=(\d+)", str(caught.value))[1])
    with pytest.raises(ConfigError, match="pool of"):
        ask(enough - 1)
    ask(enough)


class Noting(Prober):
    """Notes which lines stood in the prompt."""

    def prefill(self, session: MemorySession, probe: Probe) -> Prefill:
        found = super().prefill(session, probe)
        self.told = [fact.id for fact in probe.facts]
        self.shown = [span.segment for span in found.layout.segments]
        return found


def test_lines_stand_in_the_order_in_which_they_were_told(tiny_model: Path) -> None:
    """Groups that become static meanwhile move to the front of a prompt, and similar lines into one place."""
    with TransformersEngine(load_model(str(tiny_model), "float32")) as engine:
        format = make_format("default", load_tokenizer(str(tiny_model)))
        for quiet in (0, 12):
            prober = Noting(engine, format, compose_variants(["keep"], SETTING), quiet)
            for kind, trial in product(KINDS, range(4)):
                assert len(list(prober.ask(Cell(kind, "after", 60), trial, 0))) == 1
                assert prober.shown == prober.told


def test_figures_and_ranks_are_written(found: tuple[dict, Path]) -> None:
    record, folder = found
    assert {one["signal"] for one in record["ranks"]} == set(SIGNALS)
    assert all(0 <= rank <= 100 for one in record["ranks"] for rank in (*one["named"], *one["holds"]))
    for name in ("recall.png", "ranks.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")


def test_a_cue_that_the_ruler_never_masters_is_named_not_left_out() -> None:
    def at(cue: str, segments: int, accuracy: float) -> Score:
        cell, interval = Cell("needle", cue, segments), wilson(accuracy, 10)
        return Score(cell, "full_recompute", 10, accuracy, interval, None, 1.0, 1.0, 1.0, 0.0)

    table = mark_table([at("after", 20, 1.0), at("after", 40, 0.8), at("before", 20, 0.3), at("before", 40, 0.1)], 0.9)
    cues, segments, right = (list(table.columns[column].cells) for column in (1, 2, 4))
    assert list(zip(cues, segments, right, strict=True)) == [
        ("after", "20", "100.0 [72.2, 100.0]"),
        ("before", "none", "≤ 30.0"),
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("segments", [LEAST, 9, 40, GREATEST])
def test_scenes_are_of_the_asked_size_and_their_needles_hold_the_answer(kind: str, segments: int) -> None:
    for seed in range(20):
        scene = make_scene(kind, segments, random.Random(seed))
        text = {fact.id: fact.text.split() for fact in scene.facts}
        assert segments - 2 < len(scene.facts) <= segments and scene.questions
        for asked in scene.questions:
            assert asked.thing in text[asked.needles[0]] and asked.answer in text[asked.needles[-1]]
            assert asked.answer not in text[asked.needles[0]], "one line would do"
            parent = {fact.id: fact.parent for fact in scene.facts}
            for near, far in pairwise(asked.needles):
                assert parent[near] == far or set(text[near]) & set(text[far]), "no way from one line to the other"


def test_tracking_asks_for_the_latest_place() -> None:
    scene = make_scene("tracking", 60, random.Random(1))
    place, latest = "", {}
    for fact in scene.facts:
        words = fact.text.split()
        if words[1] == "go":
            place = words[3]
        else:
            latest[words[2]] = place
    assert {asked.thing: asked.answer for asked in scene.questions} == latest
    assert len(scene.facts) / 2 > 2 * len(latest), "nothing is moved twice"


@pytest.mark.parametrize("cue", CUES)
def test_the_cue_stands_where_it_was_asked_for(cue: str) -> None:
    probe = make_probe("needle", 20, cue, random.Random(5))
    named = next(fact.text.split()[2] for fact in probe.facts if fact.id == probe.needles[0])
    assert (named in probe.front) == (cue != "after") and (named in probe.question) == (cue != "before")


def test_the_same_seed_asks_the_same() -> None:
    cell = Cell("two_hop", "both", 30)
    assert cell.probe(3, seed=1) == cell.probe(3, seed=1) != cell.probe(3, seed=2)


def test_every_name_is_one_token() -> None:
    """What falls into pieces would look like another name's beginning."""
    tokenizer = load_tokenizer(str(BUNDLED))
    for kind in KINDS:
        words = {word for fact in make_scene(kind, GREATEST, random.Random(0)).facts for word in fact.text.split()}
        assert all(len(tokenizer.encode(word, add_special_tokens=False)) == 1 for word in words)


def test_signals_are_ranked_over_the_memory_alone() -> None:
    with TransformersEngine(load_model(str(BUNDLED), "float32")) as engine:
        format = make_format("default", load_tokenizer(str(BUNDLED)))
        seen = watch(engine, format, make_probe("needle", 20, "both", random.Random(2)))
        layers = engine.info.layers - 1
    for named, holds in seen.values():
        assert len(named) == len(holds) == layers
        assert torch.tensor([*named, *holds]).max() < 100
    assert min(seen["last query"][0]) < 5, "the planner looks the word up somewhere"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--kinds", "haystack"), "'haystack'.*needle"),
        (("--cues", "beside"), "'beside'.*after"),
        (("--segments", "3"), "3 segments.*use 8 to 250"),
        (("--segments", "ten"), "ten"),
        (("--trials", "0"), "--trials 1"),
        (("--methods", "none"), "--methods names nothing"),
        (("--kinds", ","), "--kinds names nothing"),
        (("--cues", "none"), "--cues names nothing"),
        (("--segments", "none"), "--segments names nothing"),
        (("--kinds", "needle,needle"), "--kinds needle,needle names one of them twice"),
        (("--methods", "keep,keep"), "twice"),
        (("--methods", "memart,keep", "--filler", "10"), "--filler=10.*memart, not keep"),
        (("--mark", "90"), "--mark 90 is a share"),
        (("--quiet", "-1"), "--quiet -1.*use --quiet 0 or more"),
        (("--kinds", "needle,vt", "--filler", "10"), "--filler tells lines, but vt have none"),
        (("--segment-tokens", "100"), "--segment-tokens 100 .* but needle, two_hop, tracking have lines"),
        (("--kinds", "vt", "prompt.format=lota"), "prompt.format.*vt have a format of their own"),
        (("eval.seed=3",), "eval.seed=3 is not read here; use --seed"),
        (("planner=keep",), "planner=keep is not read here; use --methods"),
        (("memory=keep",), "memory=keep is not read here; use --methods"),
        (("env.stream=2",), "env.stream=2 is not read here; these keys are: memory, model, .*eval.threads"),
        (("prompt.style=linked",), "prompt.style=linked is not read here"),
        (("eval.threads=0",), "eval.threads=0"),
        (
            ("--methods", "full_recompute,keep+model.dtype=float32"),
            r"keep\+model.*'model.dtype=float32' is not a method's",
        ),
        (
            ("--methods", "keep,one:keep+prompt.encoder=nonsense"),
            "one: 'prompt.encoder=nonsense' is not a method's own",
        ),
        (("--methods", "keep,one:keep+planner.policy=generate"), "one: 'planner.policy.*memory, prompt.budget are"),
    ],
)
def test_what_cannot_be_asked_is_refused(arguments: tuple[str, ...], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        report(parser().parse_intermixed_args([*arguments]), make_console())


def test_memories_are_asked_from_small_to_large() -> None:
    """What stands last is what the tables call the largest."""
    cells = cells_of(parser().parse_intermixed_args(["--kinds", "vt", "--cues", "after", "--segments", "10,2,4"]))
    assert [cell.segments for cell in cells] == [2, 4, 10]


ONE_PROBE = ("--methods", "full_recompute", "--kinds", "needle", "--cues", "after", "--segments", "8", "--trials", "1")


def test_ranks_are_of_prompts_as_they_were_asked_for(tiny_model: Path, tmp_path: Path) -> None:
    overrides = [f"model={tiny_model}", "model.dtype=float32", "prompt.start=mug_1"]
    own = [*overrides, *ONE_PROBE, "--ranks", "1", "--out", str(tmp_path)]
    report(parser().parse_intermixed_args(own), make_console())
    probe = Cell("needle", "after", 8).probe(0, 0)
    with TransformersEngine(load_model(str(tiny_model), "float32")) as engine:
        tokenizer = load_tokenizer(str(tiny_model))
        started, plain = (watch(engine, make_format("default", tokenizer, (), s), probe) for s in ("mug_1", None))
    ranks = {one["signal"]: one["named"] for one in json.loads((tmp_path / "recall.json").read_text())["ranks"]}
    assert ranks == {signal: named for signal, (named, _) in started.items()}
    assert ranks != {signal: named for signal, (named, _) in plain.items()}


def test_threads_are_as_many_as_asked_for(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    report(parser().parse_intermixed_args([f"model={tiny_model}", "eval.threads=3", *ONE_PROBE]), make_console())
    assert asked == [3]
