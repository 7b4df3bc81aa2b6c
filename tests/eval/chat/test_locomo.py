"""Questions about conversations, through every memory method: numbers add up, and nothing leaks between questions."""

from __future__ import annotations

import json
import sys
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
from eval.chat.rows import ANSWERS, AnswerFolder, AnswerRow, answer_row, score
from eval.chat.summary import summarize
from eval.chat.time_split import PARTS as SPLIT
from eval.common.intervals import wilson
from keep_agent.errors import ConfigError, DataError
from keep_agent.guard import BAD_INPUT
from keep_agent.rollout.results import PARTS
from keep_agent.rollout.run_folder import SUMMARY
from memory.construction import isolated as blocks
from memory.engine.attention.rope import RopeTables
from memory.engine.base import Engine
from memory.engine.transfer.per_layer_retrieval import PerLayerRetrieval
from memory.segments.sentence_encoder import HashedNgrams, make_encoder
from tests.rewriting import change_lines, change_object
from tests.waiting import FakeTime

METHODS = [path.stem for path in sorted((Path(locomo.__file__).parents[1] / "configs" / "memory").glob("*.yaml"))]
SMALL = (
    "generated.conversations=1", "generated.sessions=3", "generated.turns=6", "generated.rounds=1",
    "planner.max_new_tokens=3", "prompt.encoder=hashed", "eval.threads=1", "model.dtype=float32",
)  # fmt: skip
Answers = Callable[..., list[AnswerRow]]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def answers(tiny_model: Path) -> Iterator[Answers]:
    """Rows of the questions of a composed config, without a folder."""

    def ask(*overrides: str) -> list[AnswerRow]:
        config = configured(tiny_model, *overrides)
        encoder = make_encoder(config.prompt.encoder)
        rows = []
        with runs.make_engine(config) as engine:
            reader = runs.make_reader(config, engine, encoder)
            for index, asked in enumerate(draw(runs.make_conversations(config), config.limit, config.eval.seed)):
                reading = reader.read(asked[0])
                rows.append(answer_row(index, asked, reading, reader.answer(asked[1]), encoder))
        return rows

    with initialize_config_module("configs", version_base="1.3"):
        yield ask
    GlobalHydra.instance().clear()


def configured(model: Path, *overrides: str) -> DictConfig:
    return compose("locomo", ["model=custom", f"model.name='{model}'", *SMALL, *overrides])


FORGETFUL = ("streaming", "h2o", "snapkv", "intentkv", "intentkv_rule")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_answers_and_its_numbers_add_up(answers: Answers, name: str) -> None:
    own_head = ["memory.retention.head=null"] if name == "intentkv" else []  # no head comes with a random model
    rows = answers(f"memory={name}", *own_head)
    assert {row.category for row in rows} >= {"single-hop", "temporal", "debate", ADVERSARIAL}
    for row in rows:
        numbers = row.numbers
        assert sum(numbers.parts[part] for part in PARTS) == pytest.approx(numbers.ttft_ms)
        assert 0 < row.prefill_tokens <= numbers.prompt_tokens
        assert row.kv_length == numbers.live_tokens + (0 if row.choice else numbers.score_tokens)
        assert numbers.live_tokens == numbers.prompt_tokens or name in FORGETFUL
        assert row.choice or numbers.score_tokens <= 3
        assert (row.scores.f1 is None) == (row.choice or row.category == ADVERSARIAL)
        assert AnswerRow.from_json(json.loads(json.dumps(row.to_json()))).to_json() == row.to_json()
    if name == "full_recompute":
        assert all(row.prefill_tokens == row.numbers.prompt_tokens and not row.encoded_tokens for row in rows)


def test_whole_memory_reuse_that_is_exact_gives_the_same_answers(answers: Answers) -> None:
    plain = answers("planner=full_recompute", "memory/retrieval=all")
    reused = answers("planner=prefix_cache", "memory/retrieval=all", "memory.layout=memory")
    assert [row.answer for row in reused] == [row.answer for row in plain]
    assert [row.kv_length for row in reused] == [row.kv_length for row in plain]
    assert all(row.evidence in (None, 1.0) for row in plain)
    talk = [row for row in reused if row.category != "debate"]
    assert all(row.numbers.hit_tokens >= row.numbers.memory_tokens - 16 for row in talk[1:])
    assert talk[0].reading.tokens >= talk[0].numbers.hit_tokens > 0, "it has lived through the conversation"


@pytest.mark.parametrize("name", ["keep", "prefix_cache", "memart", "sparsex"])
def test_a_question_is_answered_as_if_it_were_the_first(answers: Answers, name: str) -> None:
    talk = f"planner={name}", "generated.debates=0"  # the prompts of a debate follow one another
    everything = {row.id: row for row in answers(*talk)}
    some = answers(*talk, "limit=4", "eval.seed=0")
    assert len(some) == 4
    for row in some:
        other = everything[row.id]
        assert (row.answer, row.kv_length, row.evidence) == (other.answer, other.kv_length, other.evidence)


def test_agents_reuse_what_others_said_wherever_it_stands(answers: Answers) -> None:
    only = "generated.conversations=0", "generated.agents=4"
    reused, exact = answers("planner=full_reuse", *only), answers("planner=prefix_cache", *only)
    first, *later = reused
    assert len(reused) == 4 and first.numbers.hit_tokens == 0
    assert all(row.numbers.hit_tokens > 0 for row in later)
    assert later[-1].numbers.hit_tokens > 0.5 * later[-1].numbers.memory_tokens, "only the notes are new"
    assert sum(row.numbers.hit_tokens for row in exact) < 0.1 * sum(row.numbers.hit_tokens for row in reused)
    harvested = answers("planner=sparsex", *only)
    assert [row.numbers.hit_tokens for row in harvested] == [row.numbers.hit_tokens for row in reused]


def test_text_memory_prefills_its_top_segments_whole(answers: Answers) -> None:
    rows = answers("planner=full_recompute", "prompt.budget=4", "memory.retrieval.mixed=false")
    whole = answers("planner=full_recompute", "memory/retrieval=all")
    assert all(row.prefill_tokens == row.numbers.prompt_tokens for row in rows)
    talk = [(row, other) for row, other in zip(rows, whole, strict=True) if row.category != "debate"]
    assert all(row.prefill_tokens < other.prefill_tokens for row, other in talk)


def test_a_session_may_be_one_segment(answers: Answers) -> None:
    rows = answers("planner=keep", "unit=session", "generated.debates=0", "prompt.budget=2")
    assert all(row.evidence in (None, 0.0, 0.5, 1.0) for row in rows) and any(row.evidence == 1.0 for row in rows)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    """What takes time here is what a test lets sleep."""
    made = FakeTime(tick=1e-6)
    monkeypatch.setattr(time, "perf_counter", made)
    return made


def test_the_split_of_the_time_adds_up_and_leaves_no_hook(answers: Answers, tiny_model: Path, clock: FakeTime) -> None:
    for row in answers("planner=keep", "profile=true", "limit=4"):
        parts = {part: getattr(row.split, part) for part in SPLIT}
        assert sum(parts.values()) == pytest.approx(row.numbers.decision_ms, rel=0.05)
        assert all(value > 0 for value in parts.values()), parts
        assert AnswerRow.from_json(row.to_json()).split.attention == pytest.approx(row.split.attention, abs=1e-3)
    with runs.make_engine(configured(tiny_model, "profile=true")) as engine:
        stopwatch = runs.Stopwatch(engine)
        with stopwatch.running():
            assert engine.decoder.layers[0].mlp._forward_hooks and "rotate_layers" in vars(engine.decoder.rope)
        assert not engine.decoder.layers[0].mlp._forward_hooks and "rotate_layers" not in vars(engine.decoder.rope)


def test_rotation_within_a_transfer_counts_once(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, clock: FakeTime
) -> None:
    plain = RopeTables.rotate_layers

    def slow(self: RopeTables, *given: object, **named: object) -> object:
        clock.sleep(0.05)
        return plain(self, *given, **named)

    monkeypatch.setattr(RopeTables, "rotate_layers", slow)
    monkeypatch.setattr(blocks, "CARRIED", 0)  # so that all blocks are there before, and are transferred
    for row in answers("planner=full_reuse", "profile=true", "limit=3"):
        assert row.split.memory + 40 < row.numbers.parts["load"] < row.split.rope + 40


@pytest.mark.parametrize("layers", ["all", "each"])
def test_what_a_latent_retrieval_computes_counts_once(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, clock: FakeTime, layers: str
) -> None:
    """Asking passes through the layers that hooks stand around; layers that choose for themselves rotate within."""
    plain, make = RopeTables.rotate_layers, runs.make_engine

    def slow(self: RopeTables, *given: object, **named: object) -> object:
        clock.sleep(0.01)
        return plain(self, *given, **named)

    def make_slow(config: DictConfig) -> Engine:
        engine = make(config)
        for layer in engine.decoder.layers:
            layer.mlp.register_forward_hook(lambda *_: clock.sleep(0.01))
        return engine

    monkeypatch.setattr(RopeTables, "rotate_layers", slow)
    monkeypatch.setattr(runs, "make_engine", make_slow)
    chosen = "memory.retrieval.top_k=4", f"memory.retrieval.layers={layers}"
    for row in answers("planner=memart", *chosen, "profile=true", "generated.debates=0", "limit=2"):
        assert (row.numbers.parts["ask"] > 10) == (layers == "all")
        assert row.split.topk < row.numbers.parts["ask"] or layers == "each"
        assert row.split.other > -5 and row.split.rope > 10


def test_what_layers_fill_for_themselves_is_memory_not_attention(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, clock: FakeTime
) -> None:
    plain = PerLayerRetrieval._fetch

    def slow(self: PerLayerRetrieval, *given: object) -> object:
        clock.sleep(0.1)
        return plain(self, *given)

    monkeypatch.setattr(PerLayerRetrieval, "_fetch", slow)
    chosen = "memory.retrieval.top_k=4", "memory.retrieval.layers=each"
    for row in answers("planner=memart", *chosen, "profile=true", "generated.debates=0", "limit=2"):
        assert row.split.attention < 300 <= row.split.memory and row.split.other > -5  # three layers sleep


@pytest.mark.parametrize("way", ["letters", "texts"])
def test_a_choice_is_the_likeliest_by_plain_scoring(tiny_model: Path, way: str) -> None:
    """Against one forward per choice."""
    with initialize_config_module("configs", version_base="1.3"):
        config = configured(tiny_model, f"choices={way}", "planner=full_recompute")
    question = Question("q", "Which?", "a cup of tea", "multiple-choice", ("water", "a cup of tea", "milk"))
    talk = Conversation("c", (Session("D1", "8 May", (Turn("D1:1", "Ada", "I like tea."),)),), (question,))
    with runs.make_engine(config) as engine:
        reader = runs.make_reader(config, engine, make_encoder("hashed"))
        reader.read(talk)
        answer = reader.answer(question)
        prompt = QuestionPrompt(runs.make_tokenizer(config.model, engine.model), config.prompt.instruction, way)
        ids = answer.prefill.layout.token_ids
        likely = []
        for candidate in prompt.candidates(question):
            rows = engine.forward_plain(ids.new_tensor([*ids.tolist(), *candidate]))[len(ids) - 1 : -1].log_softmax(-1)
            total = sum(float(row[token]) for row, token in zip(rows, candidate, strict=True))
            likely.append(total / (len(candidate) if way == "texts" else 1))
    assert answer.text == question.choices[max(range(3), key=likely.__getitem__)]


def test_a_chat_template_stands_around_memory_and_question(chat: PreTrainedTokenizerFast) -> None:
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
    encoder = HashedNgrams()
    open_ = Question("q", "Which?", "red cup", "single-hop")
    assert score("red cup", open_, encoder).f1 == 1.0 and not score("red cup", open_, encoder).abstained
    assert score("No information.", open_, encoder).abstained
    nothing = replace(open_, answer="", category=ADVERSARIAL)
    assert score("I don't know", nothing, encoder).correct is True
    assert score("red cup", nothing, encoder).correct is False and score("", nothing, encoder).correct is False
    assert score("No", replace(nothing, answer="No"), encoder).correct is True
    choice = replace(open_, choices=("red cup", "tea"))
    assert score("tea", choice, encoder).correct is False and score("tea", choice, encoder).f1 is None


def test_the_summary_keeps_adversarial_questions_apart(answers: Answers) -> None:
    rows = [
        replace(row, scores=score(row.gold or "no information", question(row), HashedNgrams())) for row in answers()
    ]
    found = summarize(rows, {})
    assert found["answerable"]["questions"] + found["adversarial"]["questions"] == found["questions"] == len(rows)
    assert found["answerable"]["f1"] == 1.0 and found["answerable"]["average"] == pytest.approx(1.0)
    assert found["adversarial"]["accuracy"] == found["adversarial"]["abstained"] == 1.0
    assert found["adversarial"]["f1"] is None and found["answerable"]["abstained"] == 0.0
    talks = len({row.conversation for row in rows if row.scores.correct is not None})
    assert found["adversarial"]["accuracy_interval"] == (wilson(1.0, talks) if talks > 1 else None)
    bert = {row.index: 0.4 for row in rows if row.scores.f1 is not None}
    assert summarize(rows, bert)["answerable"]["average"] == pytest.approx((3 + 0.4) / 4)
    assert found["prefill_tokens"]["mean"] == pytest.approx(sum(row.prefill_tokens for row in rows) / len(rows))


def question(row: AnswerRow) -> Question:
    return Question("q", row.question, row.gold, row.category, (row.gold,) if row.choice else ())


@pytest.fixture
def call(call: Command) -> Command:
    """The command with arguments."""
    return partial(call, locomo.main)


def the_run(under: str = "outputs") -> Path:
    (found,) = Path(under).rglob(ANSWERS)
    return found.parent


def test_a_run_shows_tables_and_writes_its_folder(call: Command, tiny_model: Path) -> None:
    code, out, _ = call(f"model={tiny_model}", *SMALL, "limit=5", "profile=true")
    assert code == 0 and all(text in out for text in ("BLEU-1", "prefill_tokens", "ttft_ms", "attention"))
    summary = json.loads((the_run() / SUMMARY).read_text())
    assert summary["questions"] == len((the_run() / ANSWERS).read_text().splitlines()) == 5
    assert summary["config"]["planner"]["name"] == "keep" and "torch" in summary["versions"]


@pytest.mark.parametrize(
    "own", [("planner=keep",), ("planner=sparsex",), ("planner=sparsex", "generated.conversations=0", "limit=5")]
)
@pytest.mark.usefixtures("garbage_stays")
def test_an_interrupted_run_is_resumed_to_the_same_end(
    call: Command, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, own: tuple[str, ...]
) -> None:
    arguments = f"model={tiny_model}", *SMALL, "limit=6", "generated.agents=5", *own
    call(*arguments, "eval.out=whole")
    calls: list[int] = []

    def interrupting(*given: object) -> AnswerRow:
        calls.append(0)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return ask(*given)

    ask = runs._ask
    with monkeypatch.context() as patch:
        patch.setattr(runs, "_ask", interrupting)
        code, out, _ = call(*arguments, "eval.out=part")
    folder = the_run("part")
    assert code == 130 and f"eval.resume={folder.resolve()}" in out.replace("\n", "")
    assert call(f"eval.resume={folder}", "limit=7")[0] == BAD_INPUT
    assert call(f"eval.resume={folder}")[0] == 0
    one, two = (AnswerFolder.resume(the_run(out)).results for out in ("whole", "part"))
    assert [without_times(row) for row in one] == [without_times(row) for row in two]


@pytest.mark.parametrize("changed", ["weights", "question"])
def test_other_weights_or_questions_do_not_go_on(call: Command, tiny_model: Path, changed: str) -> None:
    call(f"model={tiny_model}", *SMALL, "limit=3", "generated.debates=0")

    def change(row: dict[str, Any]) -> None:
        row[changed] = f"x{row[changed]}"

    if changed == "weights":
        change_object(the_run() / "config.json", change)
    else:
        change_lines(the_run() / ANSWERS, change)
    code, _, err = call(f"eval.resume={the_run()}")
    assert code == BAD_INPUT
    assert {"weights": "other weights", "question": "the data no longer have there"}[changed] in err


def test_a_run_of_another_command_is_refused(call: Command, tmp_path: Path) -> None:
    for name, text in (("config.json", '{"options": {}}'), ("probes.jsonl", "{}\n")):
        (tmp_path / name).write_text(text)
        code, _, err = call(f"eval.resume={tmp_path}")
        assert code == BAD_INPUT and "another command" in err


def without_times(row: AnswerRow) -> dict[str, object]:
    plain = row.to_json()
    numbers = {name: value for name, value in plain["numbers"].items() if name != "parts" and not name.endswith("_ms")}
    return plain | {"numbers": numbers, "reading": row.reading.tokens}


def test_a_bertscore_that_cannot_be_had_costs_no_answer(
    call: Command, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scores(answers: list[str], _: list[str], model: str) -> list[float]:
        if model == "typo":
            raise ConfigError("bertscore=typo cannot be loaded")
        return [0.25] * len(answers)

    monkeypatch.setattr(runs, "check_bertscore", lambda model: None)
    monkeypatch.setattr(runs, "bert_scores", scores)
    code, _, err = call(f"model={tiny_model}", *SMALL, "limit=4", "generated.debates=0", "bertscore=typo")
    folder = the_run()
    assert code == BAD_INPUT and f"eval.resume={folder.resolve()} bertscore=NAME" in err
    assert call(f"eval.resume={folder}")[0] == BAD_INPUT, "what was asked for still is"
    assert call(f"eval.resume={folder}", "bertscore=good")[0] == 0
    summary = json.loads((folder / SUMMARY).read_text())
    assert summary["answerable"]["bertscore"] == 0.25 and summary["config"]["bertscore"] == "good"
    monkeypatch.setattr("eval.common.run.version", lambda name: "9.9")  # of what answers nothing any more
    assert call(f"eval.resume={folder}", "bertscore=null")[0] == 0
    assert json.loads((folder / SUMMARY).read_text())["versions"] == summary["versions"]
    assert json.loads((folder / SUMMARY).read_text())["answerable"]["bertscore"] is None


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ("limit=0", "limit=0"),
        ("unit=word", "unit=word"),
        ("choices=numbers", "choices=numbers"),
        ("replay=maybe", "replay=maybe"),
        ("profile=1", "profile=1"),
        ("data=nowhere.json", "nowhere.json does not exist"),
        ("generated.speakers=20", "generated.speakers=20"),
        ("prompt.budget=0", "prompt.budget=0"),
        ("model.name=nowhere", "nowhere"),
        ("bertscore=x", "bertscore"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_folder(call: Command, tiny_model: Path, argument: str, named: str) -> None:
    code, _, err = call(f"model={tiny_model}", *SMALL, argument)
    assert code == BAD_INPUT and named in err and err.count("\n") == 1
    assert not Path("outputs").exists()


def test_a_planner_without_memory_is_refused(call: Command) -> None:
    code, _, err = call("planner=expert")
    assert code == BAD_INPUT and "planner=expert reads no conversations" in err


def test_help_shows_how_it_is_called(call: Command) -> None:
    code, out, _ = call("--help")
    assert code == 0 and "keep-eval-locomo data=locomo10.json" in out and "replay" in out


def test_a_real_question(call: Command, tiny_model: Path, data_root: Path) -> None:
    data = data_root / "locomo" / "30.json.gz"
    if not data.is_file():
        pytest.skip(f"needs {data}: KEEP_AGENT_DATA names a folder without locomo/")
    code, _, err = call(f"model={tiny_model}", *SMALL, f"data={data}", "limit=1", "prompt.budget=10")
    assert code == 0, err
    (row,) = AnswerFolder.resume(the_run()).results
    assert row.conversation == "30" and row.numbers.memory_tokens > 0 and row.question.endswith("?")


def test_runs_of_the_same_questions_stand_side_by_side(
    call: Command, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = f"model={tiny_model}", *SMALL
    call(*base, "limit=4", "planner=full_recompute", "prompt.budget=3", "memory.retrieval.mixed=false", "eval.out=a")
    call(*base, "limit=6", "planner=keep", "eval.out=b")
    call(*base, "limit=6", "planner=keep", "memory/recompute=none", "eval.out=c")

    def show(*paths: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["compare", *paths])
        with pytest.raises(SystemExit) as stop:
            compare.main()
        return (stop.value.code or 0, *capsys.readouterr())

    code, out, _ = show("a", "b")
    both = {row.id for row in AnswerFolder.resume(the_run("a")).results}
    both &= {row.id for row in AnswerFolder.resume(the_run("b")).results}
    assert code == 0 and f"{len(both)} questions" in out
    assert "full_recompute, embedding 3" in out and "keep_lean, embedding 40" in out
    assert "F1 gain" in out
    code, out, _ = show("b", "c")
    assert code == 0 and "keep_lean, embedding 40 (b/" in out and "keep_lean, embedding 40 (c/" in out
    assert "differ in more than their method" not in out
    call(*base, "limit=2", "planner=keep", "unit=session", "profile=true", "eval.out=d")
    code, out, _ = show("b", "d")
    assert code == 0 and "note: these runs differ in more than their method: profile, unit" in out
    code, _, err = show("a", "nowhere")
    assert code == BAD_INPUT and "no answered questions under nowhere" in err


def test_questions_are_paired_with_their_gold_answers(answers: Answers) -> None:
    rows = [row for row in answers("limit=9") if row.scores.f1 is not None]
    better = [replace(row, scores=replace(row.scores, f1=row.scores.f1 + 0.25)) for row in reversed(rows)]
    other = replace(better[0], gold=better[0].gold + " or so")
    here, there = compare.common([[other, *better[1:]], rows])
    assert len(here) == len(there) == len(rows) - 1 and other not in here
    found = compare.f1_difference(here, there)
    assert found.mean == pytest.approx(0.25) and found.more == found.pairs == len(here)
    assert found.clusters == len({row.conversation for row in here})
    with pytest.raises(DataError, match="no question in common"):
        compare.common([[other], rows])


def test_prompts_of_one_debate_are_one_cluster(answers: Answers) -> None:
    rows = answers("generated.conversations=0", "generated.debates=1", "generated.agents=2", "generated.rounds=2")
    assert len(rows) > 1 and len({row.id for row in rows}) == len(rows)
    assert len({row.conversation for row in rows}) == 1
