"""RULER's tasks as probes: documents of a given size in tokens, and a question before them, after them, or both.

This place of the question is called the cue. A question before the documents begins with a description of them. After
the documents comes the question, or with cue ``before`` a reminder of it. Each document is a reusable segment.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from eval.recall.ruler import TASKS, TaskInstance
from keep_agent.errors import ConfigError
from planners.prompts.formats import PLACEHOLDER, PlainFormat, Splicer, template_parts
from planners.training.recall_probes import CUES, MemoryLine

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TextFormat:
    """Format of a user turn followed by the start of the answer.

    ``turn`` is the text between the question and the first words of the answer, without a chat template a newline.
    Prompts begin with the token ``start``, if set; without a template its default is the tokenizer's BOS token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, start: str | None = None) -> None:
        self._tokenizer, self._splice = tokenizer, Splicer(tokenizer)
        if not getattr(tokenizer, "chat_template", None):
            self._context, self.turn = PlainFormat(tokenizer, start).context(), "\n"
            return
        before, self.turn = template_parts(tokenizer, PLACEHOLDER, enable_thinking=False)
        first = [] if start is None else [self._splice.token(start)]
        self._context = first + self._splice.raw(before)

    def context(self) -> list[int]:
        return self._context

    def line(self, text: str) -> list[int]:
        """Return the token ids of ``text``; a newline at its end is always a separate token."""
        body = text.removesuffix("\n")
        return self._splice.raw(body) + [self._splice.newline] * (len(text) - len(body))

    def stops(self) -> set[int]:
        """Return the end-of-text token, the only stop, since an answer may have several lines."""
        end = self._tokenizer.eos_token_id
        return set() if end is None else {end}

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)


SEGMENT_TOKENS = 4096  # segment size in SparseX
MIN_PIECE_TOKENS = 4  # approximate tokens of the shortest sentence or list entry
TOLERANCE = 0.05  # relative error of a document's size; half a sentence, if that is more
TRIES = 12  # tries to reach that size; each is much closer than the previous one
PHRASING_TOKENS = 24  # extra answer tokens for phrasing around the expected words


@dataclass(frozen=True, slots=True)
class RulerProbe:
    """Documents, a ``front`` line before them ("" with cue ``after``), and a ``question`` after them."""

    front: str
    facts: tuple[MemoryLine, ...]
    question: str
    answers: tuple[str, ...]
    grade_never_falls: ClassVar[bool] = True  # a longer answer never gets a lower grade

    def max_answer_tokens(self, length: Callable[[str], int]) -> int:
        """Return the maximum number of answer tokens; ``length`` counts the tokens of a text."""
        return 2 * length(", ".join(self.answers)) + PHRASING_TOKENS

    def grade(self, answer: str) -> float:
        """Return RULER's metric: the share of expected words that the answer contains, ignoring case."""
        answer = answer.lower()
        return sum(word.lower() in answer for word in self.answers) / len(self.answers)


def check_ruler(segments: int, cue: str) -> None:
    """Raise `ConfigError` for an unknown cue, or for fewer than one document; needs no model."""
    if cue not in CUES:
        raise ConfigError(f"cue {cue!r} is unknown; choose one of: {', '.join(CUES)}")
    if segments < 1:
        raise ConfigError(f"a probe of {segments} documents is impossible; use --segments 1 or more")


@dataclass(frozen=True)
class Ruler:
    """Generator of probes whose documents have about ``segment_tokens`` tokens each."""

    format: TextFormat
    segment_tokens: int = SEGMENT_TOKENS

    def make(self, kind: str, segments: int, cue: str, rng: random.Random) -> RulerProbe:
        """Make a probe of a ``kind`` in ``TASKS``. Raises `ConfigError` for no documents or too small documents."""
        check_ruler(segments, cue)
        task = TASKS[kind]
        instance, facts = self._fit_documents(kind, segments, rng.getrandbits(64))
        front = "" if cue == "after" else f"{task.about} {instance.question}\n"
        ending = task.reminder if cue == "before" else instance.question
        return RulerProbe(front, facts, f"{ending}{self.format.turn}{task.answer_start}", instance.answers)

    def _fit_documents(self, kind: str, segments: int, seed: int) -> tuple[TaskInstance, tuple[MemoryLine, ...]]:
        """Write the instance of ``seed`` with more or fewer pieces until its documents have the right size."""
        size, tokens = max(1, self.segment_tokens // MIN_PIECE_TOKENS), 0.0
        for _ in range(TRIES):
            instance = TASKS[kind].write(size * segments, segments, random.Random(seed))
            texts = (" ".join(instance.pieces[number * size :][:size]) for number in range(segments))
            facts = tuple(MemoryLine(f"document_{i}", f"Document {i}: {text}\n") for i, text in enumerate(texts, 1))
            tokens = sum(len(self.format.line(fact.text)) for fact in facts) / segments
            better = max(1, round(size * self.segment_tokens / tokens))
            if better == size:
                break
            size = better
        if abs(tokens - self.segment_tokens) > max(TOLERANCE * self.segment_tokens, tokens / size / 2):
            raise ConfigError(
                f"--segment-tokens {self.segment_tokens} is too small: a document of {kind} has {tokens:.0f} tokens; "
                "use a larger value"
            )
        return instance, facts
