"""Recall probes: their answers need attention between lines, and every method gets the same probes."""

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
from eval.recall.__main__ import SETTING, cells_of, parser
from eval.recall.cells import Cell, Probe
from eval.recall.layer_signals import SIGNALS, needle_ranks
from eval.recall.prober import Prober
from eval.recall.scores import Score, mark_table
from keep_agent.errors import ConfigError
from memory.engine.models.load import load_model
from memory.engine.models.tokenizer import load_tokenizer
from memory.engine.transformers.engine import TransformersEngine
from memory.prompt.report import Prefill
from memory.session import MemorySession
from planners.bundled import BUNDLED
from planners.prompts.formats import make_format
from planners.training.recall_probes import CUES, KINDS, MAX_LINES, MIN_LINES, make_probe, make_scene
from tests.eval.recall.conftest import recall

METHODS = "full_recompute,full_reuse,prefix_cache,all:keep+memory.recompute.schedule.average=1"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    """Run the bundled planner on a few needle probes; return recall.json and the folder."""
    folder = tmp_path_factory.mktemp("recall")
    options = ["--methods", METHODS, "--kinds", "needle", "--cues", "after", "--segments", "8,24", "--trials", "12"]
    recall(*options, "--ranks", "3", "--out", str(folder))
    return json.loads((folder / "recall.json").read_text()), folder


def test_full_recomputation_answers_and_full_reuse_does_not(run: tuple[dict, Path]) -> None:
    rates = {score["method"]: score for score in run[0]["scores"] if score["cell"]["segments"] == 24}
    full, reuse = rates["full_recompute"], rates["full_reuse"]
    assert full["accuracy"] > 0.6 and reuse["accuracy"] < full["accuracy"] - 0.4
    assert full["gap"] is None and reuse["gap"]["mean"] == pytest.approx(reuse["accuracy"] - full["accuracy"])
    assert full["computed_ratio"] == 1 and reuse["computed_ratio"] < 0.1
    assert reuse["prefill_tokens"] == 2  # the question: where mug_2


def test_keep_that_recomputes_every_row_is_as_accurate_as_full_recomputation(run: tuple[dict, Path]) -> None:
    for size in (8, 24):
        rates = {score["method"]: score["accuracy"] for score in run[0]["scores"] if score["cell"]["segments"] == size}
        assert rates["all"] == rates["full_recompute"]


@pytest.mark.slow
def test_memory_beyond_the_models_positions_is_retrieved_only_with_decoupled_positions(tmp_path: Path) -> None:
    """Filler text with more tokens than the model has positions separates the lines from the question."""
    top = "memory.retrieval.top_k=24"
    methods = f"memart:memart+{top},coupled:memart+{top}+memory.construction.positions=coupled"
    options = ["--methods", methods, "--kinds", "needle", "--cues", "after", "--segments", "12", "--trials", "4"]
    recall(*options, "--filler", "1050", "--out", str(tmp_path))
    rates = {score["method"]: score for score in json.loads((tmp_path / "recall.json").read_text())["scores"]}
    assert rates["memart"]["accuracy"] >= rates["coupled"]["accuracy"] + 0.3
    assert rates["memart"]["prefill_tokens"] == 2


def test_blocks_of_one_probe_are_removed_before_the_next(tiny_model: Path) -> None:
    """A pool with room for one probe suffices for all probes; leftover blocks would evict those of later probes."""
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
def test_a_pool_too_small_for_the_lines_is_refused_before_any_probe_runs(method: str) -> None:
    """Lines evicted from a small pool would silently be recomputed. The message names a capacity that works."""
    options = ["--kinds", "two_hop", "--cues", "after", "--segments", "20", "--trials", "1"]

    def ask(capacity: int) -> None:
        variant = f"{method}+memory.pinned.capacity_bytes={capacity}"
        recall("--methods", variant, *options)

    with pytest.raises(ConfigError, match=f"{method}.* stores.* pool of 100000; add .memory.pinned.capacity") as error:
        ask(100_000)
    enough = int(re.search(r"add .memory.pinned.capacity_bytes=(\d+)", str(error.value))[1])
    with pytest.raises(ConfigError, match="pool of"):
        ask(enough - 1)
    ask(enough)


class RecordingProber(Prober):
    """Prober that records the lines of each prompt."""

    def prefill(self, session: MemorySession, probe: Probe) -> Prefill:
        prefill = super().prefill(session, probe)
        self.facts = [fact.id for fact in probe.facts]
        self.segments = [span.segment for span in prefill.layout.segments]
        return prefill


def test_prompts_keep_the_order_of_the_lines(tiny_model: Path) -> None:
    """Otherwise static groups would move to the front of a prompt, and similar lines would become one group."""
    with TransformersEngine(load_model(str(tiny_model), "float32")) as engine:
        format = make_format("default", load_tokenizer(str(tiny_model)))
        for quiet in (0, 12):
            prober = RecordingProber(engine, format, compose_variants(["keep"], SETTING), quiet)
            for kind, trial in product(KINDS, range(4)):
                assert len(list(prober.ask(Cell(kind, "after", 60), trial, 0))) == 1
                assert prober.segments == prober.facts


def test_figures_and_ranks_are_written(run: tuple[dict, Path]) -> None:
    record, folder = run
    assert {ranks["signal"] for ranks in record["ranks"]} == set(SIGNALS)
    assert all(0 <= rank <= 100 for ranks in record["ranks"] for rank in (*ranks["named"], *ranks["holds"]))
    for name in ("recall.png", "ranks.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")


def test_the_mark_table_lists_a_cue_at_which_the_first_method_never_reaches_the_mark() -> None:
    def at(cue: str, segments: int, accuracy: float) -> Score:
        cell, interval = Cell("needle", cue, segments), wilson(accuracy, 10)
        return Score(cell, "full_recompute", 10, accuracy, interval, None, 1.0, 1.0, 1.0, 0.0)

    table = mark_table([at("after", 20, 1.0), at("after", 40, 0.8), at("before", 20, 0.3), at("before", 40, 0.1)], 0.9)
    cues, segments, right = (list(table.columns[column].cells) for column in (1, 2, 4))
    assert (cues, segments, right) == (["after", "before"], ["20", "none"], ["100.0 [72.2, 100.0]", "≤ 30.0"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("segments", [MIN_LINES, 9, 40, MAX_LINES])
def test_scenes_have_the_requested_size_and_their_needles_contain_the_answer(kind: str, segments: int) -> None:
    for seed in range(20):
        scene = make_scene(kind, segments, random.Random(seed))
        text = {fact.id: fact.text.split() for fact in scene.facts}
        assert segments - 2 < len(scene.facts) <= segments and scene.questions
        for question in scene.questions:
            assert question.entity in text[question.needles[0]] and question.answer in text[question.needles[-1]]
            assert question.answer not in text[question.needles[0]], "a single line must not suffice"
            parent = {fact.id: fact.parent for fact in scene.facts}
            for near, far in pairwise(question.needles):
                assert parent[near] == far or set(text[near]) & set(text[far]), "consecutive needles must be linked"


def test_tracking_asks_for_the_latest_place() -> None:
    scene = make_scene("tracking", 60, random.Random(1))
    place, latest = "", {}
    for fact in scene.facts:
        words = fact.text.split()
        if words[1] == "go":
            place = words[3]
        else:
            latest[words[2]] = place
    assert {question.entity: question.answer for question in scene.questions} == latest
    assert len(scene.facts) / 2 > 2 * len(latest), "objects must move more than once"


@pytest.mark.parametrize("cue", CUES)
def test_the_cue_has_the_requested_position(cue: str) -> None:
    probe = make_probe("needle", 20, cue, random.Random(5))
    entity = next(fact.text.split()[2] for fact in probe.facts if fact.id == probe.needles[0])
    assert (entity in probe.front) == (cue != "after") and (entity in probe.question) == (cue != "before")


def test_probes_depend_on_the_seed_alone() -> None:
    cell = Cell("two_hop", "both", 30)
    assert cell.probe(3, seed=1) == cell.probe(3, seed=1) != cell.probe(3, seed=2)


def test_every_name_is_one_token() -> None:
    """Otherwise the first token of a name could equal the first token of another name."""
    tokenizer = load_tokenizer(str(BUNDLED))
    for kind in KINDS:
        words = {word for fact in make_scene(kind, MAX_LINES, random.Random(0)).facts for word in fact.text.split()}
        assert all(len(tokenizer.encode(word, add_special_tokens=False)) == 1 for word in words)


def test_signals_rank_only_memory_rows() -> None:
    with TransformersEngine(load_model(str(BUNDLED), "float32")) as engine:
        format = make_format("default", load_tokenizer(str(BUNDLED)))
        ranks = needle_ranks(engine, format, make_probe("needle", 20, "both", random.Random(2)))
        layers = engine.info.layers - 1
    for question_line, answer_line in ranks.values():
        assert len(question_line) == len(answer_line) == layers
        assert torch.tensor([*question_line, *answer_line]).max() < 100
    assert min(ranks["last query"][0]) < 5, "the last query must attend to the needle at some layer"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--kinds", "haystack"), "'haystack'.*needle"),
        (("--cues", "beside"), "'beside'.*after"),
        (("--segments", "3"), "3 segments.*use 8 to 250"),
        (("--segments", "ten"), "ten"),
        (("--trials", "0"), "--trials 1"),
        (("--methods", "none"), "--methods is empty"),
        (("--kinds", ","), "--kinds is empty"),
        (("--cues", "none"), "--cues is empty"),
        (("--segments", "none"), "--segments is empty"),
        (("--kinds", "needle,needle"), "--kinds needle,needle names a value twice"),
        (("--methods", "keep,keep"), "twice"),
        (("--methods", "memart,keep", "--filler", "10"), "--filler=10.*memart, not keep"),
        (("--mark", "90"), "--mark 90 is not a share"),
        (("--quiet", "-1"), "--quiet -1.*use --quiet 0 or more"),
        (("--kinds", "needle,vt", "--filler", "10"), "--filler applies to lines, but vt have none"),
        (("--segment-tokens", "100"), "--segment-tokens 100 .* but needle, two_hop, tracking have lines"),
        (("--kinds", "vt", "prompt.format=lota"), "prompt.format.*vt have their own format"),
        (("eval.seed=3",), "eval.seed=3 is not read here; use --seed"),
        (("planner=keep",), "planner=keep is not read here; use --methods"),
        (("memory=keep",), "memory=keep is not read here; use --methods"),
        (("env.stream=2",), "env.stream=2 is not read here; keys that are read: memory, model, .*eval.threads"),
        (("prompt.style=linked",), "prompt.style=linked is not read here"),
        (("eval.threads=0",), "eval.threads=0"),
        (
            ("--methods", "full_recompute,keep+model.dtype=float32"),
            r"keep\+model.*may differ only in memory, prompt.budget, not in 'model.dtype=float32'",
        ),
        (
            ("--methods", "keep,one:keep+prompt.encoder=nonsense"),
            "one: methods may differ only in memory, prompt.budget, not in 'prompt.encoder=nonsense'",
        ),
        (("--methods", "keep,one:keep+planner.policy=generate"), "one: .*budget, not in 'planner.policy"),
    ],
)
def test_invalid_options_are_refused(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        recall(*arguments)


def test_cells_are_sorted_by_size() -> None:
    """The tables take the last cell as the largest."""
    cells = cells_of(parser().parse_intermixed_args(["--kinds", "vt", "--cues", "after", "--segments", "10,2,4"]))
    assert [cell.segments for cell in cells] == [2, 4, 10]


ONE_PROBE = ("--methods", "full_recompute", "--kinds", "needle", "--cues", "after", "--segments", "8", "--trials", "1")


def test_ranks_use_the_configured_prompt_start(tiny_model: Path, tmp_path: Path) -> None:
    overrides = [f"model={tiny_model}", "model.dtype=float32", "prompt.start=mug_1"]
    options = [*overrides, *ONE_PROBE, "--ranks", "1", "--out", str(tmp_path)]
    recall(*options)
    probe = Cell("needle", "after", 8).probe(0, 0)
    with TransformersEngine(load_model(str(tiny_model), "float32")) as engine:
        tokenizer = load_tokenizer(str(tiny_model))
        formats = (make_format("default", tokenizer, (), start) for start in ("mug_1", None))
        with_start, plain = (needle_ranks(engine, form, probe) for form in formats)
    ranks = {row["signal"]: row["named"] for row in json.loads((tmp_path / "recall.json").read_text())["ranks"]}
    assert ranks == {signal: first for signal, (first, _) in with_start.items()}
    assert ranks != {signal: first for signal, (first, _) in plain.items()}


def test_the_number_of_torch_threads_is_configurable(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    recall(f"model={tiny_model}", "eval.threads=3", *ONE_PROBE)
    assert threads == [3]
