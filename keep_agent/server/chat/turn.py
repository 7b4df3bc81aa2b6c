"""One turn of a conversation: the prompt behind the agent's rows, the answer as it comes, the rows put away."""

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
from memory.engine.scheduler.request_stream import Reason, Stream
from memory.engine.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GenerationRequest:
    """What is asked for: ``text`` gives the prompt's text, and is called on the turn's thread."""

    agent: str
    text: Callable[[], str]
    max_tokens: int
    stops: Sequence[str] = ()
    persist: bool = True  # the rows go to the disk, if there is one


@dataclass(frozen=True)
class Prefilled:
    """What the agent's rows have of a prompt, as in `keep_agent.scenarios.turn_records.Turn`."""

    kind: str
    origin: str
    kept: int
    new: int


@dataclass(frozen=True)
class TurnEnd:
    """How an answer ended: ``stop`` (of its own accord, or before ``stopped_by``), ``length`` or ``cancelled``.

    ``generated`` leaves out what the scheduler made before it heard of a stop, which is not the same twice.
    """

    reason: str
    generated: int
    stopped_by: str | None
    ttft_ms: float | None  # since the request came
    decode_ms: float


class Turn:
    """Runs on a thread of its own; may be cancelled from any other. ``tell`` hears what it says, piece by piece."""

    def __init__(
        self, memories: AgentMemories, scheduler: Scheduler, special: SpecialTokens, request: GenerationRequest,
        prompt_chars: int, tell: Callable[[Prefilled | str], None],
    ) -> None:  # fmt: skip
        self.request = request
        self.prefilled: Prefilled | None = None
        self._memories, self._scheduler, self._special, self._tell = memories, scheduler, special, tell
        self._prompt_chars = prompt_chars
        self._stream: Stream | None = None
        self._cancelled = False
        self._lock = threading.Lock()
        self._began = time.perf_counter()
        self._first: float | None = None

    def cancel(self) -> None:
        """End soon. Rows that are computed are kept."""
        with self._lock:
            self._cancelled = True
            if self._stream is not None:
                self._stream.cancel()

    def run(self) -> TurnEnd:
        """Raises KeepError, and whatever goes wrong with the model; the agent's memory is then what it was."""
        text = self.request.text()
        check_length(text, self._prompt_chars)
        with self._memories.turn(self.request.agent, text) as prompt:
            most = min(self.request.max_tokens, self._room(prompt))
            self.prefilled = Prefilled(prompt.kind, prompt.origin, prompt.reused, len(prompt.new))
            self._tell(self.prefilled)
            detokenizer = Detokenizer(prompt.coder, self.request.stops, self._special.hidden)
            stream = self._submit(prompt, most)
            try:
                self._follow(stream, detokenizer)
            finally:
                stream.cancel()  # nothing, if it has ended
                stream.collect()  # what the prompt's rows are is certain only now
            self._put_away(prompt, detokenizer)
        return self._ended(stream, detokenizer)

    def _room(self, prompt: AgentPrompt) -> int:
        """Tokens that the model can still read behind the prompt."""
        return self._memories.engine.info.max_positions - len(prompt.token_text.ids)

    def _submit(self, prompt: AgentPrompt, most: int) -> Stream:
        stream = self._scheduler.submit(prompt.agent, prompt.cache, prompt.new, most, stop_ids=self._special.ends)
        with self._lock:
            self._stream = stream
            if self._cancelled:
                stream.cancel()
        return stream

    def _follow(self, stream: Stream, detokenizer: Detokenizer) -> None:
        for token in stream:
            self._first = self._first or time.perf_counter()
            self._say(detokenizer.feed(token))
            if detokenizer.stop is not None:
                return
        self._say(detokenizer.flush())

    def _say(self, piece: str) -> None:
        if piece:
            self._tell(piece)

    def _put_away(self, prompt: AgentPrompt, detokenizer: Detokenizer) -> None:
        try:
            self._memories.finish(prompt, *detokenizer.whole, persist=self.request.persist)
        except CapacityError:  # the turn is kept; that others had to stay is no fault of this request
            log.warning("agent %s", prompt.agent, exc_info=True)

    def _ended(self, stream: Stream, detokenizer: Detokenizer) -> TurnEnd:
        if detokenizer.stop is not None or stream.reason is Reason.STOP:
            reason = Reason.STOP
        else:
            reason = Reason.CANCELLED if self._cancelled else Reason.LENGTH
        now, first = time.perf_counter(), self._first
        ttft = None if first is None else 1e3 * (first - self._began)
        return TurnEnd(
            reason.value, detokenizer.count, detokenizer.stop, ttft, 0.0 if first is None else 1e3 * (now - first)
        )


def check_length(text: str, most: int) -> None:
    """Raises TooLarge for a prompt of more than ``most`` characters."""
    if len(text) > most:
        raise TooLarge(f"the prompt has {len(text)} characters, {most} are taken; shorten it")
