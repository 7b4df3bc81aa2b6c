"""Answer rows, as plain data for JSON: one line per question with the answer, its scores and its cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from eval.chat.answer_scores import abstains, bleu1, similarity, token_f1
from eval.chat.conversation import Item, Question
from eval.chat.reader import SPLIT_PARTS, LatencySplit, ReadCost, TimedAnswer
from keep_agent.rollout.results import StepNumbers
from keep_agent.rollout.run_folder import RunFolder
from keep_agent.rollout.trace import step_numbers
from memory.segments.sentence_encoder import SentenceEncoder
from planners.base import Decision

ANSWERS = "answers.jsonl"


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of an answer: text metrics for open questions, ``correct`` for multiple choice and adversarial ones."""

    abstained: bool = False
    correct: bool | None = None  # multiple choice: right choice; adversarial: abstains, or gives the reference answer
    f1: float | None = None
    bleu1: float | None = None
    similarity: float | None = None


@dataclass(frozen=True, slots=True)
class AnswerRow:
    index: int
    id: str  # conversation/question
    conversation: str  # id of its group (conversations with one memory), else its own id
    category: str
    choice: bool  # multiple choice
    question: str
    gold: str  # reference answer
    answer: str
    scores: Scores
    numbers: StepNumbers  # times and rows of the answer
    kv_length: int  # rows of the prompt's cache at the answer's last token
    evidence: float | None = None  # share of the evidence turns that the prompt contains
    reading: ReadCost = field(default_factory=ReadCost)  # of the conversation; 0 if it was read before
    split: LatencySplit | None = None

    @property
    def prefill_tokens(self) -> float:
        """Prompt rows computed, averaged over the layers, without newly encoded blocks."""
        return self.numbers.token_layers / self.numbers.layers

    @property
    def encoded_tokens(self) -> float:
        """Rows of newly encoded blocks, averaged over the layers."""
        return self.numbers.encoded_token_layers / self.numbers.layers

    def to_json(self) -> dict[str, Any]:
        split = self.split and {part: round(getattr(self.split, name), 3) for part, name in SPLIT_PARTS.items()}
        return asdict(replace(self, split=None)) | {"numbers": self.numbers.to_json(), "split": split}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> AnswerRow:
        """Parse the output of `to_json`. Raises KeyError or TypeError for missing or unknown fields."""
        values = {item.name: row[item.name] for item in fields(cls)}
        values |= {"scores": Scores(**row["scores"]), "numbers": StepNumbers(**row["numbers"])}
        split = row["split"] and LatencySplit(**{SPLIT_PARTS[part]: value for part, value in row["split"].items()})
        values |= {"reading": ReadCost(**row["reading"]), "split": split}
        return cls(**values)


class AnswerFolder(RunFolder):
    """Run folder of answered questions."""

    lines = ANSWERS
    result = AnswerRow


def score(answer: str, question: Question, encoder: SentenceEncoder) -> Scores:
    gave_up = abstains(answer) and not question.choices
    if question.choices:
        return Scores(correct=answer == question.answer)
    if question.adversarial:
        agrees = bool(question.answer) and token_f1(answer, question.answer) == 1.0
        return Scores(abstained=gave_up, correct=gave_up or agrees)
    gold = question.answer
    return Scores(gave_up, None, token_f1(answer, gold), bleu1(answer, gold), similarity(answer, gold, encoder))


def row_id(item: Item) -> str:
    conversation, question = item
    return f"{conversation.id}/{question.id}"


def answer_row(index: int, item: Item, reading: ReadCost, answer: TimedAnswer, encoder: SentenceEncoder) -> AnswerRow:
    conversation, question = item
    decision = Decision("", (), answer.prefill, answer.score_ms, answer.tokens)
    return AnswerRow(
        index, row_id(item), conversation.group or conversation.id, question.category, bool(question.choices),
        question.text, question.answer, answer.text, score(answer.text, question, encoder),
        step_numbers(decision, 0, answer.wall_ms), answer.kv_length,
        evidence_share(item, answer), reading, answer.split,
    )  # fmt: skip


def evidence_share(item: Item, answer: TimedAnswer) -> float | None:
    """Return the share of evidence turns whose segment or session is in the prompt; None without evidence turns."""
    conversation, question = item
    session_of = {turn.id: session.id for session in conversation.sessions for turn in session.turns}
    evidence = [id for id in question.evidence if id in session_of]
    if not evidence:
        return None
    prompt = {id for unit in answer.prefill.units for id in unit.segments}
    by_session = not prompt & session_of.keys()  # unit=session: the prompt contains sessions, not turns
    return sum(id in prompt or (by_session and session_of[id] in prompt) for id in evidence) / len(evidence)
