"""RULER's tasks: every needle occurs once, documents have the requested size, and answers get the right score."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from eval.common.variants import compose_variants
from eval.recall.cells import Cell
from eval.recall.prober import Prober
from eval.recall.ruler import NOISE, TASKS, CommonWords, FrequentWords, MultiQuery, VariableTracking, hide_needles
from eval.recall.ruler_probes import TOLERANCE, Ruler, RulerProbe, TextFormat
from keep_agent.errors import CapacityError, ConfigError
from memory.engine.models.load import load_model
from memory.engine.models.tokenizer import load_tokenizer
from memory.engine.transformers.engine import TransformersEngine
from planners.bundled import BUNDLED
from planners.training.recall_probes import CUES
from tests.eval.recall.conftest import recall

TOKENS = 1024
NEEDLE = r"magic number of the (\w+ \w+) is (\d+)\."
DOCUMENTS = 3


@pytest.fixture(scope="module")
def ruler() -> Ruler:
    return Ruler(TextFormat(load_tokenizer(str(BUNDLED))), TOKENS)


def probe_of(ruler: Ruler, kind: str, seed: int = 0, cue: str = "both", documents: int = DOCUMENTS) -> RulerProbe:
    return ruler.make(kind, documents, cue, random.Random(seed))


def text(probe: RulerProbe) -> str:
    return "".join(fact.text for fact in probe.facts)


@pytest.mark.parametrize("kind", TASKS)
def test_documents_are_lines_of_the_requested_size(ruler: Ruler, kind: str) -> None:
    for seed in range(3):
        probe = probe_of(ruler, kind, seed)
        assert len({fact.id for fact in probe.facts}) == DOCUMENTS
        for fact in probe.facts:
            assert fact.text.endswith("\n") and fact.text.count("\n") == 1
            assert abs(len(ruler.format.line(fact.text)) - TOKENS) <= TOLERANCE * TOKENS


@pytest.mark.parametrize("kind", TASKS)
def test_the_size_counts_tokens_of_the_given_tokenizer(kind: str, chat: PreTrainedTokenizerBase) -> None:
    """A byte-level tokenizer counts bytes, so its documents are shorter than those of a word tokenizer."""
    bytewise = Ruler(TextFormat(chat), 6000)
    for fact in probe_of(bytewise, kind).facts:
        assert abs(len(bytewise.format.line(fact.text)) - 6000) <= TOLERANCE * 6000 and len(fact.text) < 7000


@pytest.mark.parametrize("kind", TASKS)
def test_answers_are_unique_and_depend_on_the_seed(ruler: Ruler, kind: str) -> None:
    probe = probe_of(ruler, kind)
    assert len(set(probe.answers)) == len(probe.answers)
    assert not any(a in b for a, b in product(probe.answers, repeat=2) if a != b)
    assert probe == probe_of(ruler, kind) != probe_of(ruler, kind, seed=1)
    cell = Cell(kind, "after", DOCUMENTS)
    assert cell.probe(3, 1, ruler.make) == cell.probe(3, 1, ruler.make) != cell.probe(4, 1, ruler.make)


@pytest.mark.parametrize("kind", ["s_niah", "mk_niah"])
def test_the_number_of_one_key_is_hidden_among_noise_or_among_other_needles(ruler: Ruler, kind: str) -> None:
    probe = probe_of(ruler, kind)
    numbers = dict(re.findall(NEEDLE, text(probe)))
    key = re.search(r"magic number of the (\w+ \w+) in the documents", probe.question)[1]
    assert probe.answers == (numbers[key],)
    noise = sum(text(probe).count(sentence) for sentence in NOISE)
    assert (len(numbers), noise > 0) == (1, True) if kind == "s_niah" else (len(numbers) > 50, noise) == (True, 0)


@pytest.mark.parametrize(("documents", "count"), [(1, 8), (3, 3), (4, 2), (5, 2), (6, 2), (7, 2), (8, 1), (12, 1)])
def test_every_document_hides_numbers_and_the_question_names_several(ruler: Ruler, documents: int, count: int) -> None:
    probe = probe_of(ruler, "mq_niah", documents=documents)
    hidden = [dict(re.findall(NEEDLE, fact.text)) for fact in probe.facts]
    assert list(map(len, hidden)) == [count] * documents and documents * count >= MultiQuery().hidden_keys
    numbers = {key: number for document in hidden for key, number in document.items()}
    assert len(set(numbers.values())) == sum(map(len, hidden))
    keys = re.findall(r"the (\w+ \w+)", re.search(r"numbers of (.*) in the documents", probe.question)[1])
    assert len(keys) == MultiQuery().queries and tuple(numbers[key] for key in keys) == probe.answers


def test_the_chain_of_variables_spans_all_documents(ruler: Ruler) -> None:
    for seed in range(5):
        probe = probe_of(ruler, "vt", seed)
        value: dict[str, str] = {}
        for name, source in re.findall(r"VAR (\w+) = (?:VAR )?(\w+)\.", text(probe)):
            value[name] = source if source.isdigit() else value[source]  # a source precedes its copies
        target = re.search(r"value (\d+),", probe.question)[1]
        assert {name for name, number in value.items() if number == target} == set(probe.answers)
        assert len(probe.answers) == VariableTracking().hops + 1 and len(set(value.values())) == 2
        holding = [fact for fact in probe.facts if any(f"VAR {name} =" in fact.text for name in probe.answers)]
        assert len(holding) == DOCUMENTS


def test_common_words_are_frequent_and_the_others_rare(ruler: Ruler) -> None:
    probe, task = probe_of(ruler, "cwe"), CommonWords()
    entries = [re.findall(r"(\d+)\. (\w+)", fact.text) for fact in probe.facts]
    for document in entries:
        assert [int(number) for number, _ in document] == list(range(1, len(document) + 1))
    times = Counter(word for document in entries for _, word in document)
    assert {word for word, often in times.items() if often == task.often} == set(probe.answers)
    rest = [often for word, often in times.items() if word not in probe.answers]
    assert len(probe.answers) == task.queries and max(rest) == task.rarely and sum(o < task.rarely for o in rest) <= 2


def test_frequencies_of_coded_words_follow_the_zeta_distribution(ruler: Ruler) -> None:
    probe, task = probe_of(ruler, "fwe"), FrequentWords()
    words = [word for fact in probe.facts for word in fact.text.split(": ")[1].split()]
    (first, *rest) = Counter(words).most_common()
    assert [first[0], *(word for word, _ in rest[:2])] == list(probe.answers)
    assert rest[1][1] > rest[2][1], "the third must be more frequent than the fourth"
    for rank, (_, often) in enumerate(rest[:8], 2):
        assert often == pytest.approx(first[1] * rank**-task.exponent, abs=1)
    assert first[1] == pytest.approx(len(words) * 6 / 3.14159**2, rel=0.02)


def test_needles_are_spread_evenly_and_in_order() -> None:
    pieces = hide_needles(["a", "b", "c"], 31, random.Random(4))
    places = [pieces.index(needle) for needle in "abc"]
    assert len(pieces) == 31 and places[0] < 10 <= places[1] < 20 <= places[2]
    assert all(piece in NOISE for place, piece in enumerate(pieces) if place not in places)


@pytest.mark.parametrize(("kind", "cue"), product(TASKS, CUES))
def test_the_cue_has_the_requested_position(ruler: Ruler, kind: str, cue: str) -> None:
    probe = probe_of(ruler, kind, cue=cue)
    question = probe_of(ruler, kind, cue="after").question.split(ruler.format.turn)[0]
    assert (question in probe.front) == (cue != "after") and (question in probe.question) == (cue != "before")
    assert probe.front == "" or (probe.front.startswith(TASKS[kind].about) and probe.front.endswith("\n"))
    assert probe.question.endswith(f"{ruler.format.turn}{TASKS[kind].answer_start}")


def test_an_answer_scores_its_share_of_expected_words(ruler: Ruler) -> None:
    probe = replace(probe_of(ruler, "vt"), answers=("KAVOTI", "BUNELO", "SIPADU", "RETOGA"))
    assert probe.grade("1. kavoti\n2. Bunelo, SIPADU and RETOGA") == 1
    assert probe.grade("KAVOTI, KAVOTI, BUNELOX") == 0.5
    assert probe.grade("KAVOT I") == probe.grade("") == 0
    assert probe.max_answer_tokens(len) > 2 * len("KAVOTI, BUNELO, SIPADU, RETOGA")


def test_a_chat_template_makes_the_probe_a_user_turn(chat: PreTrainedTokenizerBase) -> None:
    format = TextFormat(chat)
    probe = Ruler(format, 6000).make("fwe", 1, "before", random.Random(0))
    ids = format.context() + format.line(probe.front) + format.line("a\n") + format.line(probe.question)
    turn = f"{probe.front}a\n{TASKS['fwe'].reminder}"
    rendered = chat.apply_chat_template([{"role": "user", "content": turn}], tokenize=False, add_generation_prompt=True)
    assert chat.decode(ids) == f"{rendered}{TASKS['fwe'].answer_start}"
    assert format.line("a\n")[-1:] == chat.encode("\n") and format.stops() == {chat.eos_token_id}
    assert format.decode([*chat.encode("b"), chat.eos_token_id]) == "b"
    assert TextFormat(chat, "<|im_end|>").context() == [chat.eos_token_id, *format.context()]


def test_without_a_template_a_prompt_begins_with_the_start_token(ruler: Ruler) -> None:
    tokenizer = load_tokenizer(str(BUNDLED))
    assert ruler.format.context() == [tokenizer.bos_token_id] and ruler.format.turn == "\n"
    assert ruler.format.stops() == set(), "an answer may have several lines"


PAPERS = "keep"
METHODS = f"full_recompute,full_reuse,{PAPERS},{PAPERS}+memory.recompute.schedule.average=1+memory.recompute.limit=null"


def test_all_methods_are_evaluated_and_reported(tiny_model: Path, tmp_path: Path) -> None:
    """Run both families of probes end to end on a random model."""
    kinds = ["needle", "vt", "fwe"]
    options = ["--methods", METHODS, "--kinds", ",".join(kinds), "--cues", "after", "--segments", "8", "--trials", "1"]
    sizes = ["--segment-tokens", "250", "--out", str(tmp_path)]
    recall(f"model={tiny_model}", *options, *sizes)
    record = json.loads((tmp_path / "recall.json").read_text())
    scores = {(score["cell"]["kind"], score["method"]): score for score in record["scores"]}
    assert len(scores) == len(record["scores"]) == len(kinds) * 4
    for kind in kinds[1:]:
        full, reuse, keep, all_ = (scores[kind, method] for method in METHODS.split(","))
        assert full["computed_ratio"] == 1 and full["accuracy"] == all_["accuracy"]
        assert all_["computed_ratio"] == pytest.approx(7 / 8, abs=0.01), "the first document's block is exact"
        assert reuse["computed_ratio"] < keep["computed_ratio"] < 1
        assert full["memory_tokens"] == pytest.approx(8 * 250, rel=TOLERANCE)


class RecordingFormat(TextFormat):
    """Text format that records the latest answer."""

    answer = ""

    def decode(self, ids: Sequence[int]) -> str:
        self.answer = super().decode(ids)
        return self.answer


def test_the_generated_answer_is_graded(tiny_model: Path) -> None:
    """The second probe expects two words, one of which is the beginning of the model's first answer."""
    with TransformersEngine(load_model(str(tiny_model), "float32")) as engine:
        tasks = Ruler(RecordingFormat(load_tokenizer(str(tiny_model))), 300)
        configs = compose_variants(["full_recompute"], ["prompt.encoder=hashed"])
        cell = Cell("vt", "after", 2)

        def make(*arguments: Any) -> RulerProbe:
            probe, answer = tasks.make(*arguments), tasks.format.answer
            return replace(probe, answers=(answer[:8].upper(), "not said")) if answer else probe

        prober = Prober(engine, tasks.format, configs, make=make)
        first, second = (next(prober.ask(cell, 0, 0)) for _ in range(2))
        assert first.right == 0 and second.right == 0.5
        assert second.memory_tokens == pytest.approx(600, rel=TOLERANCE)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("--segments", "0"), ConfigError, "0 documents.*--segments 1"),
        (("--cues", "beside"), ConfigError, "'beside'.*after"),
        (("--ranks", "2"), ConfigError, "--ranks 0"),
        (("--segment-tokens", "100", "--segments", "1"), ConfigError, "300 words.*larger --segment-tokens"),
        (("--segment-tokens", "4096"), CapacityError, r"takes 1\d{4} tokens.*4096 positions.*smaller --segment-tokens"),
    ],
)
def test_invalid_options_are_refused(
    arguments: tuple[str, ...], error: type[Exception], message: str, tiny_model: Path
) -> None:
    options = [f"model={tiny_model}", "--kinds", "cwe", "--methods", "full_recompute", "--trials", "1"]
    with pytest.raises(error, match=message):
        recall(*options, *arguments)


def test_documents_smaller_than_a_sentence_are_refused(ruler: Ruler) -> None:
    with pytest.raises(ConfigError, match="--segment-tokens 10 is too small: a document of mq_niah has \\d+ tokens"):
        replace(ruler, segment_tokens=10).make("mq_niah", 8, "both", random.Random(0))
