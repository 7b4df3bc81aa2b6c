"""One turn of a conversation: prefill on the agent's KV rows (stored keys and values), streamed answer, saving."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from keep_agent.errors import CapacityError
from keep_agent.server.chat.detokenizer import Detokenizer
from keep_agent.server.error_handlers import TooLarge
from memory.agents.manager import AgentMemories, AgentPrompt
from memory.engine.models.chat_template import SpecialTokens
from memory.engine.scheduler.request_stream import FinishReason, Stream
from memory.engine.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GenerationRequest:
    """A generation request. ``text`` is a function that makes the prompt; the turn's thread calls it."""

    agent: str
    text: Callable[[], str]
    max_tokens: int
    stops: Sequence[str] = ()
    persist: bool = True  # write the rows to disk, if there is a folder


@dataclass(frozen=True)
class PromptReuse:
    """Reuse of the agent's KV rows by a prompt. Fields as in `keep_agent.scenarios.turn_records.TurnCost`."""

    kind: str
    origin: str
    kept: int
    new: int


@dataclass(frozen=True)
class TurnEnd:
    """End of an answer. ``reason``: ``stop`` (end token, or string ``stopped_by``), ``length`` or ``cancelled``."""

    reason: str
    generated: int
    stopped_by: str | None
    ttft_ms: float | None  # ms from the request to the first token
    decode_ms: float


class Turn:
    """One turn. Any thread may call `cancel`. ``emit`` receives the prompt's `PromptReuse`, then pieces of text."""

    def __init__(
        self, memories: AgentMemories, scheduler: Scheduler, special: SpecialTokens, request: GenerationRequest,
        prompt_chars: int, emit: Callable[[PromptReuse | str], None],
    ) -> None:  # fmt: skip
        self.request = request
        self.prefilled: PromptReuse | None = None
        self._memories, self._scheduler, self._special, self._emit = memories, scheduler, special, emit
        self._prompt_chars = prompt_chars
        self._stream: Stream | None = None
        self._is_cancelled = False
        self._lock = threading.Lock()
        self._start = time.perf_counter()
        self._first: float | None = None  # time of the first token

    def cancel(self) -> None:
        with self._lock:
            self._is_cancelled = True
            if self._stream is not None:
                self._stream.cancel()

    def run(self) -> TurnEnd:
        """Run the turn. Raises KeepError, or an error of the model. After an error the agent's memory is unchanged."""
        text = self.request.text()
        check_length(text, self._prompt_chars)
        with self._memories.turn(self.request.agent, text) as prompt:
            room = self._memories.engine.info.max_positions - len(prompt.token_text.ids)
            self.prefilled = PromptReuse(prompt.kind, prompt.origin, prompt.reused, len(prompt.new))
            self._emit(self.prefilled)
            detokenizer = Detokenizer(prompt.coder, self.request.stops, self._special.hidden)
            stream = self._submit(prompt, min(self.request.max_tokens, room))
            try:
                self._follow(stream, detokenizer)
            finally:
                stream.cancel()  # no effect on an ended turn
                stream.collect()  # waits until the prompt's rows are complete
            try:
                self._memories.finish(prompt, *detokenizer.complete_tokens, persist=self.request.persist)
            except CapacityError:  # the turn is stored; only the eviction of other agents has failed
                log.warning("agent %s", prompt.agent, exc_info=True)
        return self._end(stream, detokenizer)

    def _submit(self, prompt: AgentPrompt, most: int) -> Stream:
        stream = self._scheduler.submit(prompt.agent, prompt.cache, prompt.new, most, stop_ids=self._special.ends)
        with self._lock:
            self._stream = stream
            if self._is_cancelled:
                stream.cancel()
        return stream

    def _follow(self, stream: Stream, detokenizer: Detokenizer) -> None:
        for token in stream:
            self._first = self._first or time.perf_counter()
            if piece := detokenizer.feed(token):
                self._emit(piece)
            if detokenizer.stop is not None:
                return
        if piece := detokenizer.flush():
            self._emit(piece)

    def _end(self, stream: Stream, detokenizer: Detokenizer) -> TurnEnd:
        if detokenizer.stop is not None or stream.reason is FinishReason.STOP:
            reason = FinishReason.STOP
        else:
            reason = FinishReason.CANCELLED if self._is_cancelled else FinishReason.LENGTH
        end, first = time.perf_counter(), self._first
        ttft, decode = (None, 0.0) if first is None else (1e3 * (first - self._start), 1e3 * (end - first))
        return TurnEnd(reason.value, detokenizer.count, detokenizer.stop, ttft, decode)


def check_length(text: str, most: int) -> None:
    """Raise TooLarge for a prompt of more than ``most`` characters."""
    if len(text) > most:
        raise TooLarge(f"the prompt has {len(text)} characters, more than {most}; shorten it")
