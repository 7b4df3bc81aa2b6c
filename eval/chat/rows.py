"""One line per answered question: what was said, how good it was, what it cost. Plain data that survives JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from eval.chat.answer_scores import abstains, bleu1, similarity, token_f1
from eval.chat.conversation import Conversation, Question
from eval.chat.reader import Answer, Reading
from eval.chat.time_split import Split
from keep_agent.rollout.results import StepNumbers
from keep_agent.rollout.run_folder import RunFolder
from keep_agent.rollout.step_numbers import step_numbers
from planners.base import Decision

if TYPE_CHECKING:
    from memory.segments.sentence_encoder import SentenceEncoder

ANSWERS = "answers.jsonl"


@dataclass(frozen=True, slots=True)
class Scores:
    """Texts are compared where there is one to compare with; ``correct`` is for what is right or wrong."""

    abstained: bool = False
    correct: bool | None = None  # multiple choice: the right one; adversarial: abstained, or gave the answer there is
    f1: float | None = None
    bleu1: float | None = None
    similarity: float | None = None


@dataclass(frozen=True, slots=True)
class AnswerRow:
    index: int
    id: str  # conversation/question
    conversation: str  # or the group of those that share a memory
    category: str
    choice: bool  # multiple choice
    question: str
    gold: str
    answer: str
    scores: Scores
    numbers: StepNumbers
    kv_length: int  # rows of the working cache at the answer's last token
    evidence: float | None = None  # share of the evidence that was in the prompt
    reading: Reading = field(default_factory=Reading)  # of the conversation, if it was read for this question
    split: Split | None = None

    @property
    def prefill_tokens(self) -> float:
        """Prompt rows that were computed, in rows over all layers; what had to be encoded first is not in it."""
        return self.numbers.token_layers / self.numbers.layers

    @property
    def encoded_tokens(self) -> float:
        """Rows encoded for blocks that this question was the first to need."""
        return self.numbers.encoded_token_layers / self.numbers.layers

    def to_json(self) -> dict[str, Any]:
        split = self.split and self.split.to_json()
        return asdict(replace(self, split=None)) | {"numbers": self.numbers.to_json(), "split": split}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> AnswerRow:
        """The row of ``to_json``; raises KeyError or TypeError when it is not one."""
        values = {each.name: row[each.name] for each in fields(cls)}
        values |= {"scores": Scores(**row["scores"]), "numbers": StepNumbers(**row["numbers"])}
        values |= {"reading": Reading(**row["reading"]), "split": row["split"] and Split(**row["split"])}
        return cls(**values)


class AnswerFolder(RunFolder):
    """The folder of a run that answers questions."""

    lines = ANSWERS
    result = AnswerRow


def score(answer: str, question: Question, encoder: SentenceEncoder) -> Scores:
    """How good ``answer`` is."""
    gave_up = abstains(answer) and not question.choices
    if question.choices:
        return Scores(correct=answer == question.answer)
    if question.adversarial:
        agrees = bool(question.answer) and token_f1(answer, question.answer) == 1.0
        return Scores(abstained=gave_up, correct=gave_up or agrees)
    gold = question.answer
    return Scores(gave_up, None, token_f1(answer, gold), bleu1(answer, gold), similarity(answer, gold, encoder))


def row_id(asked: tuple[Conversation, Question]) -> str:
    conversation, question = asked
    return f"{conversation.id}/{question.id}"


def answer_row(
    index: int, asked: tuple[Conversation, Question], reading: Reading, answer: Answer, encoder: SentenceEncoder
) -> AnswerRow:
    conversation, question = asked
    decision = Decision("", (), answer.prefill, answer.score_ms, answer.tokens)
    return AnswerRow(
        index=index,
        id=row_id(asked),
        conversation=conversation.group or conversation.id,
        category=question.category,
        choice=bool(question.choices),
        question=question.text,
        gold=question.answer,
        answer=answer.text,
        scores=score(answer.text, question, encoder),
        numbers=step_numbers(decision, 0, answer.wall_ms),
        kv_length=answer.kv_length,
        evidence=evidence_share(asked, answer),
        reading=reading,
        split=answer.split,
    )


def evidence_share(asked: tuple[Conversation, Question], answer: Answer) -> float | None:
    """Share of the evidence turns that the prompt held, as themselves or within their session; None without any."""
    conversation, question = asked
    holder = {turn.id: session.id for session in conversation.sessions for turn in session.turns}
    wanted = [id for id in question.evidence if id in holder]
    if not wanted:
        return None
    told = {id for unit in answer.prefill.units for id in unit.segments}
    whole = not told & holder.keys()  # unit=session: sessions stand in the prompt, not turns
    return sum(id in told or (whole and holder[id] in told) for id in wanted) / len(wanted)
