"""The study of lines encoded apart: encodings and repairs do what they say, and the command writes its findings."""

from __future__ import annotations

import copy
import random
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from eval.common.tables import markdown
from eval.isolation.__main__ import main
from eval.isolation.measure import Answer, Isolation
from eval.isolation.report import Findings
from eval.isolation.rows import EncodingRow, IsolationFolder
from eval.isolation.stages import FixedLines, QueryAttention, make_repair
from eval.isolation.texts import PARAGRAPH, TEXTS, LineMemory
from eval.recall.cells import RecallFolder
from keep_agent.errors import ConfigError
from memory.engine.models.tiny_models import tiny_model
from memory.engine.transformers.engine import TransformersEngine
from memory.loading.serial import Serial
from memory.prompt.layout import Unit, lay_out, place
from memory.recompute.first_tokens import FirstTokens
from planners.prompts.formats import Splicer
from tests.rewriting import keep_lines

LINES = 12


@pytest.fixture(scope="module")
def memory() -> LineMemory:
    return TEXTS["needles"](LINES, random.Random(0))


@pytest.fixture(scope="module")
def study(memory: LineMemory, chat: PreTrainedTokenizerFast) -> Iterator[Isolation]:
    model = tiny_model("llama", layers=4, vocab_size=len(chat), max_position_embeddings=4096)
    with TransformersEngine(model) as engine:
        yield Isolation(engine, memory, Splicer(chat).lines, [0], 4)


@pytest.mark.parametrize("kind", TEXTS)
def test_questions_name_the_line_with_their_answer(kind: str) -> None:
    memory = TEXTS[kind](40, random.Random(1))
    assert len(memory.lines) == 40 and len({*memory.lines, *memory.examples}) == 40 + 16
    for question in memory.questions:
        line = memory.lines[question.line]
        assert question.candidates[0] in line or question.candidates[0] == "hand"
        assert all(f" {text}" in "".join(memory.lines) or text == "hand" for text in question.candidates)
        assert len(set(question.candidates)) == 10
        name = question.text.split("the ")[-1].removesuffix(" is") if kind == "needles" else question.text.split()[-1]
        assert name in line and sum(name in text for text in memory.lines) == 1
    assert memory == TEXTS[kind](40, random.Random(1)) != TEXTS[kind](40, random.Random(2))


@pytest.mark.parametrize("encoding", [f"behind {LINES}", "prompt"])
def test_behind_all_earlier_lines_the_rows_are_those_of_the_prompt(
    encoding: str, study: Isolation, memory: LineMemory
) -> None:
    study = Isolation(study.engine, memory, study._encode, [0])
    blocks = study.encode(encoding)
    deviation = study.deviation(blocks, 0)
    assert max(float(deviation.keys.max()), float(deviation.values.max())) < 1e-5
    repairs = ["nothing", "named", "full"]
    for answers, attention in study.answers(blocks, memory.questions[:3], repairs, random.Random(0)):
        assert all(answer.same and abs(answer.divergence) < 1e-6 for answer in answers)
        shares = {answer.repair: answer.computed for answer in answers}
        assert shares["nothing"] < shares["named"] < shares["full"]
        assert attention.shares.shape == (3, 3) and attention.shares.min() > 0 and attention.shares.max() < 1
        assert all(1 <= rank <= LINES for rank in attention.ranks)


def test_a_line_is_encoded_at_its_positions_in_the_prompt(study: Isolation, memory: LineMemory) -> None:
    study = Isolation(study.engine, memory, study._encode, [0])
    at_position, apart = study.encode("position"), study.encode("context")
    deviations = [float((far.v - near.v).abs().max()) for far, near in zip(at_position, apart, strict=True)]
    assert deviations[0] < 1e-5 and min(deviations[1:]) > 1e-4, "the first line follows the context line"
    for far, near in zip(at_position, apart, strict=True):
        assert torch.allclose(far.k[0], near.k[0], atol=1e-6), "keys before RoPE do not depend on positions in layer 0"
    # transformers computes the last line at the same positions, behind a prefix at positions 0, 1, ...
    prefix, line, start = study.context, study.lines[-1], study._starts()[-2]
    module = study.engine.plain
    positions = torch.tensor([[*range(len(prefix)), *range(start, start + len(line))]])
    cache = module(torch.tensor([[*prefix, *line]]), position_ids=positions, use_cache=True).past_key_values
    due = torch.stack([layer.values[0, :, len(prefix) :] for layer in cache.layers])
    assert torch.allclose(at_position[-1].v, due, atol=1e-5)


def test_prose_and_examples_come_before_the_line(study: Isolation, memory: LineMemory) -> None:
    prose, line = study._encode(PARAGRAPH), study.lines[3]
    (due,) = study.engine.encode([(study._block([*study._prefix(), *prose]), line)])
    assert torch.allclose(study.encode("prose")[3].v, due.v, atol=1e-5)
    (due,) = study.engine.encode([(study._block([*study._prefix(), *study._encode(memory.examples[0])]), line)])
    assert torch.allclose(study.encode("examples 1")[3].v, due.v, atol=1e-5)


def test_attention_is_that_of_the_model(study: Isolation, memory: LineMemory) -> None:
    study = Isolation(study.engine, memory, study._encode, [0])
    query = study._encode(memory.questions[0].text)
    blocks = study.encode("prompt")
    placements = place(study.units, len(study.context), blocks, [True] * LINES)
    layout = lay_out(study.context, placements, query, True, study.engine.device)
    attention = QueryAttention(layout)
    study.engine.prefill(layout, attention, Serial(), context_block=study.context_block)
    module = copy.deepcopy(study.engine.plain)
    module.set_attn_implementation("eager")
    weights = torch.stack(module(layout.token_ids[None], output_attentions=True).attentions)[:-1, 0, :, layout.query :]
    assert torch.allclose(torch.stack(attention.on_rows), weights.sum((1, 2)).double(), atol=1e-4)
    spans = [weights[..., span.start : span.stop].sum(-1) for span in layout.segments]
    by_line = torch.stack(spans, -1)
    assert torch.allclose(
        torch.stack(attention.peak), (by_line / by_line.sum(-1, keepdim=True)).amax((1, 2)).double(), atol=1e-4
    )


def test_the_less_a_line_sees_the_more_its_rows_deviate(study: Isolation) -> None:
    deviations = [study.deviation(study.encode(name), 3) for name in ("bos", "context", "examples 4")]
    layer_0 = [float(deviation.values[0].max()) for deviation in deviations]
    assert max(layer_0) < 1e-6, "values of layer 0 depend on the token alone"
    means = [float(deviation.values[1:].mean()) for deviation in deviations]
    assert means == sorted(means, reverse=True) and means[-1] > 1e-3


def test_repairs_choose_the_lines_that_they_name(study: Isolation, memory: LineMemory) -> None:
    units = [Unit.of("segment", [(str(line), [5, 6])]) for line in range(LINES)]
    attention = QueryAttention(lay_out([1], place(units, 1), [7, 8], True, torch.device("cpu")))
    for layer in range(6):
        attention.peak.append(torch.eye(LINES)[5 if layer else 7])
        attention.on_rows.append(torch.tensor([4.0, *[1.0] * 2 * LINES, 9.0, 9.0]))
        attention.on_rows[-1][3] += 4  # first row of line 1
    first, prefix = (LINES + 4) / (2 * LINES + 4), 4 / (2 * LINES + 8)
    assert torch.allclose(attention.shares(1), torch.tensor([[prefix, first, 6 / (2 * LINES + 4)]]).expand(6, 3))
    assert attention.ranking("mean")[0] == 1 and attention.ranking("peak")[0] == 5
    rng = random.Random(0)
    assert make_repair("mean 1", attention, 3, LINES, rng) == FixedLines([1])
    assert make_repair("peak 1", attention, 3, LINES, rng) == FixedLines([5])
    assert make_repair("named", attention, 3, LINES, rng) == FixedLines([3])
    stage = make_repair("random 4", attention, 3, LINES, rng)
    assert stage.lines[0] == 3 and len(set(stage.lines)) == 4
    assert make_repair("first 2", attention, 3, LINES, rng) == FirstTokens(2)


def test_the_command_prints_tables_and_writes_its_findings(
    tmp_path: Path, chat: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    tiny_model("llama", layers=4, vocab_size=len(chat), max_position_embeddings=4096).module.save_pretrained(folder)
    chat.save_pretrained(folder)
    out = tmp_path / "out"
    options = f"model={folder} model.dtype=float32 --lines 12 --memories 2 --questions 2 --markdown --out {out}"

    def printed(encodings: str) -> str:
        arguments = [*options.split(), "--repairs", "nothing,peak 2,full", "--encodings", encodings]
        monkeypatch.setattr(sys, "argv", ["isolation", *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
        streams = capsys.readouterr()
        return streams.out if exit_.value.code == 0 else streams.err

    first = printed("context,behind 2")
    assert "right answers in %" in first and "rank by maximum" in first and (out / "isolation.svg").exists()
    assert "encoded after: context" in first and "repair: nothing" in first
    rows = IsolationFolder.read(out)
    ids = ["0/context", "0/behind 2", "1/context", "1/behind 2"]
    assert [(row.id, len(row.answers), len(row.ranks)) for row in rows] == [(id, 6, 2) for id in ids]
    assert len(rows[0].values) == 4 and len(rows[0].shares) == 3
    keep_lines(out / "encodings.jsonl", 1)  # as a kill after the first encoding leaves it
    assert printed("context,behind 2") == first and len(IsolationFolder.read(out)) == 4
    assert "other settings: encodings" in printed("bos")
    with pytest.raises(ConfigError, match="a run of another command"):
        RecallFolder.find(out, {"options": {}, "configs": {}})


def test_differences_are_paired_and_clustered_by_memory() -> None:
    def row(memory: int, encoding: str, rights: Sequence[bool]) -> EncodingRow:
        answers = [
            Answer(repair, question, right == (repair == "nothing"), True, 0.5 * memory + len(encoding), 0.1)
            for question, right in enumerate(rights) for repair in ("nothing", "full")
        ]  # fmt: skip
        return EncodingRow(0, memory, encoding, [[1.0]], [[1.0]], [[0.1, 0.2, 0.3]] * 2, [(1, 2)] * 2, answers)

    rows = [row(memory, encoding, [False, memory < 5]) for memory in range(10) for encoding in ("bos", "context")]
    *_, change, gain = map(markdown, Findings(rows, ["nothing", "full"]).tables())
    assert "+4.00 (4.00 to 4.00)" in change, "the memories' own divergences cancel out"
    assert "+50 (20 to 80)" in gain, "right answers of full recomputation minus those of nothing, five memories of two"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--lines 3", "--lines 3 is too few"),
        ("--lines 161", "--lines 161 is too many; use up to 160"),
        ("--memories 0", "--memories 0 is too few"),
        ("--encodings behind", "--encodings 'behind' is unknown; choose from nothing, bos, context, position, prose"),
        ("--encodings 'bos,examples 17'", "--encodings 'examples 17' names more lines than there are; use up to 16"),
        ("--encodings bos,bos", "--encodings bos,bos names a value twice; name each once"),
        ("--repairs ,", "--repairs is empty; choose from nothing, full, named"),
        ("--repairs last", "--repairs 'last' is unknown"),
        ("planner=keep", "planner=keep is not read here"),
    ],
)
def test_wrong_options_are_refused(
    options: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["isolation", *shlex.split(options)])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 2 and message in capsys.readouterr().err
