"""Reader: stores conversations in a memory session, answers questions from it, and measures the cost of each answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from eval.chat.conversation import Conversation, Item, Question, check_unit, lines_of

if TYPE_CHECKING:
    from eval.chat.prompt import QuestionPrompt
    from memory.engine.transformers.module_timer import ModuleTimer
    from memory.prompt.report import Prefill
    from memory.session import MemorySession


@dataclass(frozen=True, slots=True)
class LatencySplit:
    """Milliseconds of one answer, from the question to the answer's last token; the parts add up to this time span."""

    attention: float = 0.0  # attention modules, including the rotation of newly computed rows
    mlp: float = 0.0
    rope: float = 0.0  # rotation of stored keys to their positions in the prompt
    topk: float = 0.0  # retrieval outside the layers: sentence encoder, choice of segments, look-up of blocks
    memory: float = 0.0  # updates of the segment graph, transfers into the prompt's cache, copies of its rows (harvest)
    remainder: float = 0.0  # embeddings, norms, head, row selection and everything else; in files: "other"


TimeSpan = tuple[float, float]  # start and end in seconds
SPLIT_PARTS = {field.name: field.name for field in fields(LatencySplit)[:-1]} | {"other": "remainder"}  # by JSON key


def split_time(timer: ModuleTimer, prefill: Prefill, wall_ms: float) -> LatencySplit:
    """Split the time of the latest answer; ``prefill`` supplies the memory's times, ``wall_ms`` is the total."""
    times, spans = prefill.timings, timer.spans
    loads = [(load.start, load.end) for load in prefill.trace.loads]
    loading = _within(spans["rope"], loads)  # rotations within a transfer
    rotating = [span for span in spans["rope"] if span not in loading]
    parts = {part: _length(part_spans) for part, part_spans in spans.items()}
    inside = _within([*loads, *rotating], spans["attention"])  # not empty if the attention modules retrieve blocks
    parts["attention"] -= _length(inside)
    parts["topk"] = times.embed + times.retrieve
    parts["memory"] = times.update + times.load + prefill.after_ms - _length(loading)
    return LatencySplit(**parts, remainder=wall_ms - sum(parts.values()))


def _length(spans: Sequence[TimeSpan]) -> float:
    """Return the total length in ms."""
    return 1e3 * sum(stop - start for start, stop in spans)


def _within(spans: Sequence[TimeSpan], limits: Sequence[TimeSpan]) -> list[TimeSpan]:
    return [(a, b) for a, b in spans if any(start <= a and b <= stop for start, stop in limits)]


@dataclass(frozen=True, slots=True)
class ReadCost:
    """Cost of reading a conversation before its first question: rows computed, averaged over layers, and time."""

    tokens: float = 0.0
    ms: float = 0.0


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """Answer to a question, and its cost."""

    text: str
    prefill: Prefill
    tokens: int  # generated tokens; for multiple choice the rows computed for scoring
    kv_length: int  # rows in the prompt's cache at the answer's last token
    wall_ms: float
    score_ms: float  # part of wall_ms that generation or scoring takes
    split: LatencySplit | None = None


class Reader:
    """Reader of one conversation after another, with one memory session.

    :param unit: ``turn`` or ``session``: the part that becomes a segment; each segment is one step of the memory
    :param replay: whether to prefill a prompt after each session of an incremental `Conversation`, so that the method
        can store (harvest) the prompt's rows; None: only if the method harvests
    :param timer: measures the latency split of each answer; None: no split
    """

    def __init__(
        self, session: MemorySession, prompt: QuestionPrompt, unit: str, max_new_tokens: int,
        replay: bool | None, timer: ModuleTimer | None,
    ) -> None:  # fmt: skip
        self._session, self._prompt, self._unit = session, prompt, check_unit(unit)
        self._max_new_tokens, self._timer = max_new_tokens, timer
        self._replay = session.method.capabilities.harvests if replay is None else replay
        self._read: Conversation | None = None

    def read(self, conversation: Conversation) -> ReadCost:
        """Store the conversation in the memory, unless the last call stored the same conversation."""
        before, self._read = self._read, conversation
        if before is conversation:
            return ReadCost()
        began, tokens = time.perf_counter(), 0.0
        self._session.reset(blocks=before is None or not before.shares_memory(conversation))
        for session in conversation.sessions:
            last = ""
            for piece in lines_of(session, self._unit):
                self._session.store.put(piece.id, piece.category, piece.text, piece.parent)
                self._session.advance()
                last = piece.text
            if self._replay and conversation.incremental and last:
                tokens += computed(self._session.prefill(last, self._prompt.empty_query()))
        return ReadCost(tokens, 1e3 * (time.perf_counter() - began))

    def restore(self, item: Item) -> None:
        """Read a conversation and prefill a question answered before the resume, to store the prompt's rows again."""
        self.read(item[0])
        self._prefill(item[1])

    def answer(self, question: Question) -> TimedAnswer:
        """Answer with greedy text or the likeliest choice. In an incremental conversation no prompt rows are stored."""
        timer = self._timer
        with timer.running() if timer else nullcontext():
            began = time.perf_counter()
            prefill = self._prefill(question)
            scoring = time.perf_counter()
            if question.choices:  # the first of equal scores wins; scoring leaves the prompt's cache unchanged
                result = self._session.score(prefill, self._prompt.candidates(question), self._prompt.reduce)
                text, tokens, decoded = question.choices[int(result.scores.argmax())], result.computed_tokens, 0
            else:
                ids = self._session.generate(prefill, self._max_new_tokens, self._prompt.stops())
                text, tokens, decoded = self._prompt.decode(ids), len(ids), len(ids)
            done = time.perf_counter()
        wall, score = 1e3 * (done - began), 1e3 * (done - scoring)
        split = split_time(timer, prefill, wall) if timer else None
        return TimedAnswer(text, prefill, tokens, prefill.cache.length + decoded, wall, score, split)

    def _prefill(self, question: Question) -> Prefill:
        persist = self._read is not None and not self._read.incremental
        return self._session.prefill(question.text, self._prompt.query(question), persist=persist)


def computed(prefill: Prefill) -> float:
    """Return the rows computed for a prompt, including blocks encoded for it, averaged over the layers."""
    counts = prefill.counts
    return (counts.token_layers + counts.encoded_token_layers) / counts.layers
