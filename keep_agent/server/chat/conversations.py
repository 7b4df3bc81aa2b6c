"""Conversations: turns of many agents on one model. One agent's turns run in order, different agents' in parallel."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

import anyio

from keep_agent.errors import ModelError
from keep_agent.scenarios.runner import REUSE, start_tokens
from keep_agent.server.chat.turn import GenerationRequest, PromptReuse, Turn, TurnEnd, check_length
from keep_agent.server.error_handlers import Refused, Unavailable
from keep_agent.server.limits.concurrency_limiter import ConcurrencyLimiter
from keep_agent.server.metrics import Metrics
from keep_agent.server.settings import ChatLimits
from memory.agents.manager import AgentMemories
from memory.agents.text_match import TokenizerCoder, TokenText
from memory.engine.base import Engine
from memory.engine.models.chat_template import SpecialTokens, render, special_tokens
from memory.engine.scheduler.request_stream import FinishReason
from memory.engine.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

KEEP_ALIVE_SECONDS = 15.0  # seconds without an event until a keep-alive is sent
ChatMessage = tuple[str, str]  # role and text
T = TypeVar("T")
CANCELLED = "the answer was cancelled: its client disconnected, or the server is closing; send the request again"


class BadMessages(Refused):
    """Messages that the model's chat template refuses."""


def chat_text(tokenizer: PreTrainedTokenizerBase, messages: Sequence[ChatMessage], continue_last: bool = False) -> str:
    """Render messages without BOS; with ``continue_last`` the answer continues the last message. Raises BadMessages."""
    if tokenizer.chat_template is None:
        lines = [f"{role}: {text}\n" for role, text in messages]
        return "".join(lines)[:-1] if continue_last else "".join([*lines, "assistant:"])
    try:
        text = render(tokenizer, messages, continue_last)
    except ModelError as error:  # either the template or the messages may be invalid
        raise BadMessages(str(error)) from error
    return text.removeprefix(tokenizer.bos_token or "")


class Generation:
    """Async view of a turn's events: a `PromptReuse`, then pieces of text, then a `TurnEnd`."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[PromptReuse | str | TurnEnd | Exception] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self.turn: Turn | None = None
        self.waiting: asyncio.Task[None] | None = None  # the turn's task while it waits for earlier turns
        self.prefilled: PromptReuse | None = None
        self.end: TurnEnd | None = None

    def put(self, item: PromptReuse | str | TurnEnd | Exception) -> None:
        """Add an event, from any thread."""
        self._loop.call_soon_threadsafe(self._events.put_nowait, item)

    def cancel(self) -> None:
        """Cancel a waiting turn at once; a running one ends soon and keeps its KV rows (keys and values)."""
        if self.turn is not None:
            self.turn.cancel()
        if self.waiting is not None:
            self.waiting.cancel()

    async def begin(self) -> None:
        """Wait until the prompt is accepted, and set ``prefilled``. Raises the error of a rejected prompt."""
        item = await self._events.get()
        if isinstance(item, Exception):
            raise item
        assert isinstance(item, PromptReuse)
        self.prefilled = item

    async def pieces(self) -> AsyncIterator[str | None]:
        """Yield text, or None after `KEEP_ALIVE_SECONDS` without text; finally set ``end``. Raises the turn's error."""
        while self.end is None:
            try:
                async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                    item = await self._events.get()
            except TimeoutError:
                yield None
                continue
            if isinstance(item, Exception):
                raise item
            if isinstance(item, TurnEnd):
                self.end = item
            else:
                assert isinstance(item, str)
                yield item


class Conversations:
    """Turns of many agents on one engine, each turn on a thread. Prompts reuse the stored KV rows of a prefix.

    :param engine: remains open; the caller closes it after this object
    :param limiter: bounds concurrent turns; a turn counts until it ends, even if its client has disconnected
    :param model: name of the model in requests
    :param folder: folder of the agents' KV rows on disk; None: no rows are written
    :param special: the model's special tokens; None: the result of `special_tokens`
    :param knobs: further arguments of `AgentMemories`
    """

    def __init__(
        self, engine: Engine, tokenizer: PreTrainedTokenizerBase, model: str, limiter: ConcurrencyLimiter,
        folder: Path | None = None, limits: ChatLimits | None = None, metrics: Metrics | None = None,
        special: SpecialTokens | None = None, **knobs: Any,
    ) -> None:  # fmt: skip
        self.tokenizer, self.model, self.limits = tokenizer, model, limits or ChatLimits()
        coder, start = TokenizerCoder(tokenizer), start_tokens(tokenizer)
        self.memories = AgentMemories(engine, coder, folder=folder, threshold=REUSE, start=start, **knobs)
        self.special = special or special_tokens(tokenizer, engine.model.module)
        self.scheduler, self._limiter, self._metrics = Scheduler(engine), limiter, metrics
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by agent; unused locks disappear
        self._threads = anyio.CapacityLimiter(math.inf)
        self._running: dict[asyncio.Task[None], Generation] = {}
        self._is_closed = False
        if metrics is not None:
            stats = {"agents": "agents in memory", "bytes": "bytes in memory", "disk_bytes": "bytes on disk"}
            for name, about in stats.items():
                read = partial(self._stat, name)
                metrics.add_gauge(f"chat_{name}", f"KV rows of conversations: {about}", read)
            metrics.add_gauge("chat_turns", "Running and waiting turns", lambda: len(self._running))

    def _stat(self, name: str) -> int:
        return self.memories.stats()[name]

    def chat(
        self, agent: str, messages: Sequence[ChatMessage], max_tokens: int, stops: Sequence[str] = (),
        continue_last: bool = False,
    ) -> Generation:  # fmt: skip
        text = partial(chat_text, self.tokenizer, messages, continue_last)
        return self.start_turn(GenerationRequest(agent, text, max_tokens, stops))

    def start_turn(self, request: GenerationRequest) -> Generation:
        """Start a turn, which runs until it ends or is cancelled."""
        if self._is_closed:
            raise Unavailable("this server is closing; use another, or try again later")
        generation, most = Generation(), self.limits.prompt_chars
        turn = Turn(self.memories, self.scheduler, self.special, request, most, generation.put)
        generation.turn, generation.waiting = turn, (task := asyncio.create_task(self._serve(generation, turn)))
        self._running[task] = generation
        task.add_done_callback(self._finish)
        return generation

    async def count(self, messages: Sequence[ChatMessage], continue_last: bool = False) -> int:
        """Count the prompt tokens of messages for an agent without a memory. Raises BadMessages, TooLarge, Busy."""

        def count() -> int:
            text = chat_text(self.tokenizer, messages, continue_last)
            check_length(text, self.limits.prompt_chars)
            return len(TokenText.of(text, self.memories.coder, self.memories.start).ids)

        async with self._limiter.admit():
            return await self.in_thread(count)

    def _finish(self, task: asyncio.Task[None]) -> None:
        generation = self._running.pop(task)
        if task.cancelled():
            generation.put(Unavailable(CANCELLED))

    async def _serve(self, generation: Generation, turn: Turn) -> None:
        try:
            async with self._limiter.admit(turn.request.agent), self._lock(turn.request.agent):
                generation.waiting = None
                end = await self.in_thread(turn.run)
                if end.reason == FinishReason.CANCELLED.value:  # a truncated answer must not look complete
                    raise Unavailable(CANCELLED)
        except Exception as error:
            generation.put(error)
            return
        if self._metrics is not None and turn.prefilled is not None:
            prefilled, ttft = turn.prefilled, None if end.ttft_ms is None else end.ttft_ms / 1e3
            self._metrics.record_chat(prefilled.kept + prefilled.new, prefilled.kept, end.generated, ttft)
        generation.put(end)

    def _lock(self, agent: str) -> asyncio.Lock:
        return self._locks.setdefault(agent, asyncio.Lock())  # the agent's turns acquire it in order

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run blocking work in the unbounded thread pool of turns."""
        return await anyio.to_thread.run_sync(work, limiter=self._threads)

    async def forget(self, agent: str) -> bool:
        """Delete an agent's KV rows after its waiting turns; return whether the agent had rows."""
        async with self._lock(agent):
            return await self.in_thread(lambda: self.memories.forget(agent))

    async def close(self) -> None:
        """Cancel all turns, wait until they have ended, then write all rows. The engine stays open."""
        self._is_closed = True
        for generation in list(self._running.values()):
            generation.cancel()
        if self._running:
            await asyncio.wait(list(self._running))
        await self.in_thread(self._close)

    def _close(self) -> None:
        try:
            self.scheduler.close(cancel=True)
        finally:
            self.memories.close()
