"""Questions about conversations with every memory method: consistent numbers, and no effect of earlier questions."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig
from transformers import PreTrainedTokenizerFast

from eval import locomo
from eval.chat import compare
from eval.chat import run as runs
from eval.chat.conversation import ADVERSARIAL, Conversation, Question, Session, Turn, draw
from eval.chat.prompt import QuestionPrompt
from eval.chat.reader import SPLIT_PARTS as SPLIT
from eval.chat.rows import ANSWERS, AnswerFolder, AnswerRow, answer_row, score
from eval.chat.summary import summarize
from eval.common.intervals import wilson
from keep_agent.errors import ConfigError, DataError
from keep_agent.guard import BAD_INPUT
from keep_agent.rollout.results import PARTS
from keep_agent.rollout.run_folder import SUMMARY
from memory.construction import isolated as blocks
from memory.engine.attention.function import RopeTables
from memory.engine.base import Engine
from memory.engine.transfer.per_layer_retrieval import PerLayerRetrieval
from memory.engine.transformers.module_timer import ModuleTimer
from memory.segments.sentence_encoder import HashedNgrams, make_encoder
from tests.eval.workers.runs import Command, assert_refused
from tests.rewriting import change_lines, change_object
from tests.waiting import FakeTime

METHODS = [path.stem for path in sorted((Path(locomo.__file__).parents[1] / "configs" / "memory").glob("*.yaml"))]
SMALL = (
    "generated.conversations=1", "generated.sessions=3", "generated.turns=6", "generated.rounds=1",
    "planner.max_new_tokens=3", "prompt.encoder=hashed", "eval.threads=1", "model.dtype=float32",
)  # fmt: skip
Answers = Callable[..., list[AnswerRow]]


@pytest.fixture
def answers(tiny_model: Path) -> Iterator[Answers]:
    """Return a function that answers the questions of a config, without a run folder."""

    def ask(*overrides: str) -> list[AnswerRow]:
        config = make_config(tiny_model, *overrides)
        encoder = make_encoder(config.prompt.encoder)
        rows = []
        with runs.make_engine(config) as engine:
            reader = runs.make_reader(config, engine, encoder)
            for index, item in enumerate(draw(runs.make_conversations(config), config.limit, config.eval.seed)):
                reading = reader.read(item[0])
                rows.append(answer_row(index, item, reading, reader.answer(item[1]), encoder))
        return rows

    with initialize_config_module("configs", version_base="1.3"):
        yield ask
    GlobalHydra.instance().clear()


def make_config(model: Path, *overrides: str) -> DictConfig:
    return compose("locomo", ["model=custom", f"model.name='{model}'", *SMALL, *overrides])


EVICTING = ("streaming", "h2o", "snapkv", "intentkv", "intentkv_rule")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_answers_with_consistent_numbers(answers: Answers, name: str) -> None:
    no_head = ["memory.retention.head=null"] if name == "intentkv" else []  # a random model has no retention head
    rows = answers(f"memory={name}", *no_head)
    assert {row.category for row in rows} >= {"single-hop", "temporal", "debate", ADVERSARIAL}
    for row in rows:
        numbers = row.numbers
        assert sum(numbers.parts[part] for part in PARTS) == pytest.approx(numbers.ttft_ms)
        assert 0 < row.prefill_tokens <= numbers.prompt_tokens
        assert row.kv_length == numbers.live_tokens + (0 if row.choice else numbers.score_tokens)
        assert numbers.live_tokens == numbers.prompt_tokens or name in EVICTING
        assert row.choice or numbers.score_tokens <= 3
        assert (row.scores.f1 is None) == (row.choice or row.category == ADVERSARIAL)
        assert AnswerRow.from_json(json.loads(json.dumps(row.to_json()))).to_json() == row.to_json()
    if name == "full_recompute":
        assert all(row.prefill_tokens == row.numbers.prompt_tokens and not row.encoded_tokens for row in rows)


def test_exact_reuse_of_the_whole_memory_gives_the_same_answers(answers: Answers) -> None:
    plain = answers("planner=full_recompute", "memory/retrieval=all")
    reused = answers("planner=prefix_cache", "memory/retrieval=all", "memory.layout=memory")
    assert [row.answer for row in reused] == [row.answer for row in plain]
    assert [row.kv_length for row in reused] == [row.kv_length for row in plain]
    assert all(row.evidence in (None, 1.0) for row in plain)
    talk = [row for row in reused if row.category != "debate"]
    assert all(row.numbers.hit_tokens >= row.numbers.memory_tokens - 16 for row in talk[1:])
    assert talk[0].reading.tokens >= talk[0].numbers.hit_tokens > 0, "reading must fill the cache before the question"


@pytest.mark.parametrize("name", ["keep", "prefix_cache", "memart", "sparsex"])
def test_earlier_questions_do_not_affect_an_answer(answers: Answers, name: str) -> None:
    talk = f"planner={name}", "generated.debates=0"  # the prompts of a debate share a memory
    everything = {row.id: row for row in answers(*talk)}
    some = answers(*talk, "limit=4", "eval.seed=0")
    assert len(some) == 4
    for row in some:
        expected = everything[row.id]
        assert (row.answer, row.kv_length, row.evidence) == (expected.answer, expected.kv_length, expected.evidence)


def test_agents_reuse_the_contributions_of_others_at_any_position(answers: Answers) -> None:
    only = "generated.conversations=0", "generated.agents=4"
    reused, exact = answers("planner=full_reuse", *only), answers("planner=prefix_cache", *only)
    first, *later = reused
    assert len(reused) == 4 and first.numbers.hit_tokens == 0
    assert all(row.numbers.hit_tokens > 0 for row in later)
    assert later[-1].numbers.hit_tokens > 0.5 * later[-1].numbers.memory_tokens, "all but the notes must be reused"
    assert sum(row.numbers.hit_tokens for row in exact) < 0.1 * sum(row.numbers.hit_tokens for row in reused)
    harvested = answers("planner=sparsex", *only)
    assert [row.numbers.hit_tokens for row in harvested] == [row.numbers.hit_tokens for row in reused]


def test_full_recomputation_prefills_only_its_top_segments(answers: Answers) -> None:
    rows = answers("planner=full_recompute", "prompt.budget=4", "memory.retrieval.mixed=false")
    whole = answers("planner=full_recompute", "memory/retrieval=all")
    assert all(row.prefill_tokens == row.numbers.prompt_tokens for row in rows)
    talk = [(top, full) for top, full in zip(rows, whole, strict=True) if top.category != "debate"]
    assert all(top.prefill_tokens < full.prefill_tokens for top, full in talk)


def test_a_session_may_be_one_segment(answers: Answers) -> None:
    rows = answers("planner=keep", "unit=session", "generated.debates=0", "prompt.budget=2")
    assert all(row.evidence in (None, 0.0, 0.5, 1.0) for row in rows) and any(row.evidence == 1.0 for row in rows)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    """Replace the clock by one that only advances when a test calls ``sleep``."""
    fake = FakeTime(tick=1e-6)
    monkeypatch.setattr(time, "perf_counter", fake)
    return fake


def slow_down(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, clock: FakeTime, seconds: float) -> None:
    """Make a method take ``seconds`` longer."""
    plain = getattr(owner, name)

    def slow(*args: object, **kwargs: object) -> object:
        clock.sleep(seconds)
        return plain(*args, **kwargs)

    monkeypatch.setattr(owner, name, slow)


def test_the_latency_split_adds_up_and_removes_its_hooks(answers: Answers, tiny_model: Path, clock: FakeTime) -> None:
    for row in answers("planner=keep", "profile=true", "limit=4"):
        parts = {part: getattr(row.split, name) for part, name in SPLIT.items()}
        assert sum(parts.values()) == pytest.approx(row.numbers.decision_ms, rel=0.05)
        assert all(value > 0 for value in parts.values()), parts
        assert AnswerRow.from_json(row.to_json()).split.attention == pytest.approx(row.split.attention, abs=1e-3)
    with runs.make_engine(make_config(tiny_model, "profile=true")) as engine:
        stopwatch = ModuleTimer(engine)
        with stopwatch.running():
            assert engine.decoder.layers[0].mlp._forward_hooks and "rotate_layers" in vars(engine.decoder.rope)
        assert not engine.decoder.layers[0].mlp._forward_hooks and "rotate_layers" not in vars(engine.decoder.rope)


def test_rotation_in_a_transfer_counts_once(answers: Answers, monkeypatch: pytest.MonkeyPatch, clock: FakeTime) -> None:
    slow_down(monkeypatch, RopeTables, "rotate_layers", clock, 0.05)
    monkeypatch.setattr(blocks, "MAX_FUSED_TOKENS", 0)  # all blocks are encoded before the prefill, and transferred
    for row in answers("planner=full_reuse", "profile=true", "limit=3"):
        assert row.split.memory + 40 < row.numbers.parts["load"] < row.split.rope + 40


@pytest.mark.parametrize("layers", ["all", "each"])
def test_computation_of_latent_retrieval_counts_once(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, clock: FakeTime, layers: str
) -> None:
    """Retrieval runs through hooked layers; with per-layer retrieval, the rotation happens inside a hooked layer."""
    make = runs.make_engine

    def make_slow(config: DictConfig) -> Engine:
        engine = make(config)
        for layer in engine.decoder.layers:
            layer.mlp.register_forward_hook(lambda *_: clock.sleep(0.01))
        return engine

    slow_down(monkeypatch, RopeTables, "rotate_layers", clock, 0.01)
    monkeypatch.setattr(runs, "make_engine", make_slow)
    retrieval = "memory.retrieval.top_k=4", f"memory.retrieval.layers={layers}"
    for row in answers("planner=memart", *retrieval, "profile=true", "generated.debates=0", "limit=2"):
        assert (row.numbers.parts["ask"] > 10) == (layers == "all")
        assert row.split.topk < row.numbers.parts["ask"] or layers == "each"
        assert row.split.remainder > -5 and row.split.rope > 10


def test_transfers_of_per_layer_retrieval_count_as_memory_not_attention(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, clock: FakeTime
) -> None:
    slow_down(monkeypatch, PerLayerRetrieval, "_fetch", clock, 0.1)
    retrieval = "memory.retrieval.top_k=4", "memory.retrieval.layers=each"
    for row in answers("planner=memart", *retrieval, "profile=true", "generated.debates=0", "limit=2"):
        assert row.split.attention < 300 <= row.split.memory and row.split.remainder > -5  # 3 layers, 100 ms each


@pytest.mark.parametrize("scoring", ["letters", "texts"])
def test_the_answer_is_the_choice_of_highest_plain_probability(tiny_model: Path, scoring: str) -> None:
    """Compare with one plain forward per choice."""
    with initialize_config_module("configs", version_base="1.3"):
        config = make_config(tiny_model, f"choices={scoring}", "planner=full_recompute")
    question = Question("q", "Which?", "a cup of tea", "multiple-choice", ("water", "a cup of tea", "milk"))
    talk = Conversation("c", (Session("D1", "8 May", (Turn("D1:1", "Ada", "I like tea."),)),), (question,))
    with runs.make_engine(config) as engine:
        reader = runs.make_reader(config, engine, make_encoder("hashed"))
        reader.read(talk)
        answer = reader.answer(question)
        prompt = QuestionPrompt(runs.make_tokenizer(config.model, engine.model), config.prompt.instruction, scoring)
        ids = answer.prefill.layout.token_ids
        likely = []
        for candidate in prompt.candidates(question):
            rows = engine.forward_plain(ids.new_tensor([*ids.tolist(), *candidate]))[len(ids) - 1 : -1].log_softmax(-1)
            total = sum(float(row[token]) for row, token in zip(rows, candidate, strict=True))
            likely.append(total / (len(candidate) if scoring == "texts" else 1))
    assert answer.text == question.choices[max(range(3), key=likely.__getitem__)]


def test_the_chat_template_encloses_memory_and_question(chat: PreTrainedTokenizerFast) -> None:
    prompt = QuestionPrompt(chat, "Answer\nthis.")
    question = Question("q", "Which?", "tea", "multiple-choice", ("water", "tea"), date="8 May")
    text = chat.decode([*prompt.context(), *prompt.line("Ada: tea\n"), *prompt.query(question)])
    assert text == (
        "<|im_start|>user\nAnswer this.\nAda: tea\nToday is 8 May.\nQuestion: Which?\n(a) water\n(b) tea\n"
        "Reply with the letter of the right choice.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert [chat.decode(ids) for ids in prompt.candidates(question)] == ["(a)", "(b)"]
    assert chat.eos_token_id in prompt.stops()
    assert prompt.decode(chat.encode(" tea\nand more<|im_end|>")) == "tea"
    with pytest.raises(ConfigError, match="choices=numbers"):
        QuestionPrompt(chat, "Answer.", "numbers")


def test_scores_of_each_kind_of_question() -> None:
    of, open_ = partial(score, encoder=HashedNgrams()), Question("q", "Which?", "red cup", "single-hop")
    assert of("red cup", open_).f1 == 1.0 and not of("red cup", open_).abstained
    assert of("No information.", open_).abstained
    adversarial = replace(open_, answer="", category=ADVERSARIAL)
    assert [of(text, adversarial).correct for text in ("I don't know", "red cup", "")] == [True, False, False]
    assert of("No", replace(adversarial, answer="No")).correct is True
    choice = of("tea", replace(open_, choices=("red cup", "tea")))
    assert choice.correct is False and choice.f1 is None


def test_the_summary_separates_adversarial_questions(answers: Answers) -> None:
    def question(row: AnswerRow) -> Question:
        return Question("q", row.question, row.gold, row.category, (row.gold,) if row.choice else ())

    golds = [(row, row.gold or "no information") for row in answers()]
    rows = [replace(row, scores=score(text, question(row), HashedNgrams())) for row, text in golds]
    summary = summarize(rows, {})
    text, adversarial = summary["answerable"], summary["adversarial"]
    assert text["questions"] + adversarial["questions"] == summary["questions"] == len(rows)
    assert (text["f1"], text["average"], text["abstained"]) == (1.0, pytest.approx(1.0), 0.0)
    assert (adversarial["accuracy"], adversarial["abstained"], adversarial["f1"]) == (1.0, 1.0, None)
    talks = len({row.conversation for row in rows if row.scores.correct is not None})
    assert adversarial["accuracy_interval"] == (wilson(1.0, talks) if talks > 1 else None)
    bert = {row.index: 0.4 for row in rows if row.scores.f1 is not None}
    assert summarize(rows, bert)["answerable"]["average"] == pytest.approx((3 + 0.4) / 4)
    assert summary["prefill_tokens"]["mean"] == pytest.approx(sum(row.prefill_tokens for row in rows) / len(rows))


@pytest.fixture
def call(call: Command) -> Command:
    """Return a function that calls the command with arguments."""
    return partial(call, locomo.main)


def the_run(under: str = "outputs") -> Path:
    (file,) = Path(under).rglob(ANSWERS)
    return file.parent


def test_a_run_prints_tables_and_writes_its_folder(call: Command, tiny_model: Path) -> None:
    code, out, _ = call(f"model={tiny_model}", *SMALL, "limit=5", "profile=true")
    assert code == 0 and all(text in out for text in ("BLEU-1", "prefill_tokens", "ttft_ms", "attention"))
    summary = json.loads((the_run() / SUMMARY).read_text())
    assert summary["questions"] == len((the_run() / ANSWERS).read_text().splitlines()) == 5
    assert summary["config"]["planner"]["name"] == "keep" and "torch" in summary["versions"]


@pytest.mark.parametrize(
    "overrides", [("planner=keep",), ("planner=sparsex",), ("planner=sparsex", "generated.conversations=0", "limit=5")]
)
@pytest.mark.usefixtures("garbage_stays")
def test_a_resumed_run_gives_the_same_answers_as_an_uninterrupted_run(
    call: Command, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...]
) -> None:
    arguments = f"model={tiny_model}", *SMALL, "limit=6", "generated.agents=5", *overrides
    call(*arguments, "eval.out=whole")
    calls: list[int] = []

    def answer_and_interrupt(*args: object) -> AnswerRow:
        calls.append(0)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return answer_row(*args)

    with monkeypatch.context() as patch:
        patch.setattr(runs, "answer_row", answer_and_interrupt)
        code, out, _ = call(*arguments, "eval.out=part")
    folder = the_run("part")
    assert code == 130 and f"eval.resume={folder.resolve()}" in out.replace("\n", "")
    assert call(f"eval.resume={folder}", "limit=7")[0] == BAD_INPUT
    assert call(f"eval.resume={folder}")[0] == 0
    whole, part = (AnswerFolder.resume(the_run(out)).results for out in ("whole", "part"))
    assert [without_times(row) for row in whole] == [without_times(row) for row in part]


@pytest.mark.parametrize("key", ["weights", "question"])
def test_a_run_with_other_weights_or_questions_is_not_resumed(call: Command, tiny_model: Path, key: str) -> None:
    call(f"model={tiny_model}", *SMALL, "limit=3", "generated.debates=0")

    def change(row: dict[str, Any]) -> None:
        row[key] = f"x{row[key]}"

    edit, name = {"weights": (change_object, "config.json"), "question": (change_lines, ANSWERS)}[key]
    edit(the_run() / name, change)
    message = {"weights": "other weights", "question": "the data have changed"}[key]
    assert_refused(call(f"eval.resume={the_run()}"), message)


def test_a_run_of_another_command_is_refused(call: Command, tmp_path: Path) -> None:
    for name, text in (("config.json", '{"options": {}}'), ("probes.jsonl", "{}\n")):
        (tmp_path / name).write_text(text)
        assert_refused(call(f"eval.resume={tmp_path}"), "another command")


def without_times(row: AnswerRow) -> dict[str, object]:
    plain = row.to_json()
    numbers = {name: value for name, value in plain["numbers"].items() if name != "parts" and not name.endswith("_ms")}
    return plain | {"numbers": numbers, "reading": row.reading.tokens}


def test_a_failing_bertscore_keeps_answers(call: Command, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def scores(answers: list[str], _: list[str], model: str) -> list[float]:
        if model == "typo":
            raise ConfigError("bertscore=typo cannot be loaded")
        return [0.25] * len(answers)

    monkeypatch.setattr(runs, "check_bertscore", lambda model: None)
    monkeypatch.setattr(runs, "bert_scores", scores)
    code, _, err = call(f"model={tiny_model}", *SMALL, "limit=4", "generated.debates=0", "bertscore=typo")
    folder = the_run()
    assert code == BAD_INPUT and f"eval.resume={folder.resolve()} bertscore=NAME" in err
    assert call(f"eval.resume={folder}")[0] == BAD_INPUT, "the saved setting must remain"
    assert call(f"eval.resume={folder}", "bertscore=good")[0] == 0
    summary = json.loads((folder / SUMMARY).read_text())
    assert summary["answerable"]["bertscore"] == 0.25 and summary["config"]["bertscore"] == "good"
    monkeypatch.setattr("eval.common.run.version", lambda name: "9.9")  # no answers are computed with this version
    assert call(f"eval.resume={folder}", "bertscore=null")[0] == 0
    assert json.loads((folder / SUMMARY).read_text())["versions"] == summary["versions"]
    assert json.loads((folder / SUMMARY).read_text())["answerable"]["bertscore"] is None


SETTINGS = "limit=0", "unit=word", "choices=numbers", "replay=maybe", "profile=1", "prompt.budget=0"
INVALID = {setting: setting for setting in (*SETTINGS, "generated.speakers=20")}
INVALID |= {"data=nowhere.json": "nowhere.json does not exist", "model.name=nowhere": "nowhere"}


@pytest.mark.parametrize(("argument", "message"), [*INVALID.items(), ("bertscore=x", "bertscore")])
def test_invalid_input_is_one_line_and_no_folder(call: Command, tiny_model: Path, argument: str, message: str) -> None:
    assert_refused(call(f"model={tiny_model}", *SMALL, argument), message)
    assert not Path("outputs").exists()


def test_a_planner_without_memory_is_refused(call: Command) -> None:
    assert_refused(call("planner=expert"), "planner=expert reads no conversations")


def test_the_help_shows_an_example(call: Command) -> None:
    code, out, _ = call("--help")
    assert code == 0 and "keep-eval-locomo data=locomo10.json" in out and "replay" in out


def test_a_question_of_the_published_locomo(call: Command, tiny_model: Path, data_root: Path) -> None:
    data = data_root / "locomo" / "30.json.gz"
    if not data.is_file():
        pytest.skip(f"needs {data}: KEEP_AGENT_DATA names a folder without locomo/")
    code, _, err = call(f"model={tiny_model}", *SMALL, f"data={data}", "limit=1", "prompt.budget=10")
    assert code == 0, err
    (row,) = AnswerFolder.resume(the_run()).results
    assert row.conversation == "30" and row.numbers.memory_tokens > 0 and row.question.endswith("?")


def test_the_comparison_lists_runs_of_the_same_questions(call: partial, tiny_model: Path) -> None:
    base, show = (f"model={tiny_model}", *SMALL), partial(call.func, compare.main)
    call(*base, "limit=4", "planner=full_recompute", "prompt.budget=3", "memory.retrieval.mixed=false", "eval.out=a")
    call(*base, "limit=6", "planner=keep", "eval.out=b")
    call(*base, "limit=6", "planner=keep", "memory/recompute=none", "eval.out=c")

    code, out, _ = show("a", "b")
    first, second = ({row.id for row in AnswerFolder.resume(the_run(run)).results} for run in "ab")
    assert code == 0 and f"{len(first & second)} questions" in out
    assert "full_recompute, embedding 3" in out and "keep, embedding 40" in out
    assert "F1 gain" in out
    code, out, _ = show("b", "c")
    assert code == 0 and "keep, embedding 40 (b/" in out and "keep, embedding 40 (c/" in out
    assert "differ in more than their method" not in out
    call(*base, "limit=2", "planner=keep", "unit=session", "profile=true", "eval.out=d")
    code, out, _ = show("b", "d")
    assert code == 0 and "note: these runs differ in more than their method: profile, unit" in out
    assert_refused(show("a", "nowhere"), "no answered questions under nowhere")


def test_questions_are_paired_with_their_gold_answers(answers: Answers) -> None:
    rows = [row for row in answers("limit=9") if row.scores.f1 is not None]
    better = [replace(row, scores=replace(row.scores, f1=row.scores.f1 + 0.25)) for row in reversed(rows)]
    unpaired = replace(better[0], gold=better[0].gold + " or so")
    first, second = compare.common_rows([[unpaired, *better[1:]], rows])
    assert len(first) == len(second) == len(rows) - 1 and unpaired not in first
    gain = compare.f1_difference(first, second)
    assert gain.mean == pytest.approx(0.25) and gain.more == gain.pairs == len(first)
    assert gain.clusters == len({row.conversation for row in first})
    with pytest.raises(DataError, match="no question in common"):
        compare.common_rows([[unpaired], rows])


def test_prompts_of_one_debate_form_one_cluster(answers: Answers) -> None:
    rows = answers("generated.conversations=0", "generated.debates=1", "generated.agents=2", "generated.rounds=2")
    assert len(rows) > 1 and len({row.id for row in rows}) == len(rows)
    assert len({row.conversation for row in rows}) == 1
