"""Reads conversations into a memory session and answers questions from it."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eval.chat.conversation import Asked, Conversation, Question, check_unit, pieces, together

if TYPE_CHECKING:
    from eval.chat.prompt import QuestionPrompt
    from eval.chat.time_split import Split, Stopwatch
    from memory.prompt.report import Prefill
    from memory.session import MemorySession


@dataclass(frozen=True, slots=True)
class Reading:
    """What reading a conversation cost before the first question: rows computed / layers, and ms."""

    tokens: float = 0.0
    ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Answer:
    """``tokens`` were decoded, or scored rows for multiple choice; ``score_ms`` is what that took of ``wall_ms``."""

    text: str
    prefill: Prefill
    tokens: int
    kv_length: int  # rows in the working cache at the last token
    wall_ms: float
    score_ms: float
    split: Split | None = None


class Reader:
    """One memory that reads conversations one after another.

    ``unit``: a segment is a turn or a whole session. Time passes by one step per segment. ``replay``: where a
    conversation was lived through, a prompt is prefilled at the end of each of its sessions, for methods that harvest
    rows; None: if the method does.
    """

    def __init__(
        self,
        session: MemorySession,
        prompt: QuestionPrompt,
        unit: str = "turn",
        max_new_tokens: int = 24,
        replay: bool | None = None,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        self._session, self._prompt, self._unit = session, prompt, check_unit(unit)
        self._max_new_tokens, self._stopwatch = max_new_tokens, stopwatch
        self._replay = session.method.capabilities.harvests if replay is None else replay
        self._read: Conversation | None = None

    def read(self, conversation: Conversation) -> Reading:
        """Make it what the memory holds; costs nothing if it is already."""
        before, self._read = self._read, conversation
        if before is conversation:
            return Reading()
        began, tokens = time.perf_counter(), 0.0
        self._session.reset(blocks=before is None or not together(before, conversation))
        for session in conversation.sessions:
            last = ""
            for piece in pieces(session, self._unit):
                self._session.store.put(piece.id, piece.category, piece.text, piece.parent)
                self._session.advance()
                last = piece.text
            if self._replay and conversation.lived and last:
                tokens += computed(self._session.prefill(last, self._prompt.pause()))
        return Reading(tokens, 1e3 * (time.perf_counter() - began))

    def remind(self, asked: Asked) -> None:
        """Make the memory what it was behind a question that an earlier run has answered, and told the cost of."""
        conversation, question = asked
        self.read(conversation)
        self._prefill(question)

    def answer(self, question: Question) -> Answer:
        """Greedy text, or the likeliest choice.

        Nothing of a question about a lived conversation stays: each is asked as if it were the first. A prompt that
        was not lived through is all there is to harvest: its rows stay for the next of its group.
        """
        stopwatch = self._stopwatch
        with stopwatch.running() if stopwatch else nullcontext():
            began = time.perf_counter()
            prefill = self._prefill(question)
            asked = time.perf_counter()
            text, tokens, decoded = self._choose(prefill, question) if question.choices else self._write(prefill)
            done = time.perf_counter()
        wall, score = 1e3 * (done - began), 1e3 * (done - asked)
        split = stopwatch.split(prefill, wall) if stopwatch else None
        return Answer(text, prefill, tokens, prefill.cache.length + decoded, wall, score, split)

    def _prefill(self, question: Question) -> Prefill:
        lasting = self._read is not None and not self._read.lived
        return self._session.prefill(question.text, self._prompt.query(question), lasting=lasting)

    def _write(self, prefill: Prefill) -> tuple[str, int, int]:
        ids = self._session.generate(prefill, self._max_new_tokens, self._prompt.stops())
        return self._prompt.decode(ids), len(ids), len(ids)

    def _choose(self, prefill: Prefill, question: Question) -> tuple[str, int, int]:
        """Ties go to the first choice; what was scored leaves the working cache as it was."""
        result = self._session.score(prefill, self._prompt.candidates(question), self._prompt.reduce)
        return question.choices[int(result.scores.argmax())], result.computed_tokens, 0


def computed(prefill: Prefill) -> float:
    """Rows a prompt computed, blocks it had to encode included, in rows over all layers."""
    counts = prefill.counts
    return (counts.token_layers + counts.encoded_token_layers) / counts.layers
