"""Many agents talk to one model: each in its own order, all of them at once, none on the event loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

import anyio

from keep_agent.scenarios.runner import REUSE, start_tokens
from keep_agent.server.chat.prompts import ChatMessage, prompt_of
from keep_agent.server.chat.settings import ChatLimits
from keep_agent.server.chat.turn import GenerationRequest, Prefilled, Turn, TurnEnd, check_length
from keep_agent.server.error_handlers import Unavailable
from keep_agent.server.limits.concurrency_limiter import ConcurrencyLimiter
from keep_agent.server.metrics import Metrics
from memory.agents.manager import AgentMemories
from memory.agents.text_match import TokenizerCoder, TokenText
from memory.engine.base import Engine
from memory.engine.models.chat_template import SpecialTokens, special_tokens
from memory.engine.scheduler.request_stream import Reason
from memory.engine.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")
GIVEN_UP = "the answer was given up: nobody listens any more, or the server is closing; ask again"


class Generation:
    """A turn as the event loop sees it: first what was there, then pieces of text, then how it ended."""

    def __init__(self) -> None:
        self._heard: asyncio.Queue[Prefilled | str | TurnEnd | Exception] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self.turn: Turn | None = None
        self.waiting: asyncio.Task[None] | None = None  # for the agent's turns before
        self.prefilled: Prefilled | None = None
        self.ended: TurnEnd | None = None

    def tell(self, what: Prefilled | str | TurnEnd | Exception) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._heard.put_nowait, what)

    def cancel(self) -> None:
        """Nobody listens any more. A turn that waits is given up at once; another ends soon, and leaves its agent free
        and with the rows it has.
        """
        if self.turn is not None:
            self.turn.cancel()
        if self.waiting is not None:
            self.waiting.cancel()

    async def begin(self) -> Prefilled:
        """Wait until the prompt is accepted; raises what is wrong with it."""
        heard = await self._next()
        assert isinstance(heard, Prefilled)
        self.prefilled = heard
        return heard

    async def pieces(self) -> AsyncIterator[str]:
        """The answer as it comes, after `begin`; raises what went wrong. ``ended`` is known behind the last piece."""
        while isinstance(heard := await self._next(), str):
            yield heard
        assert isinstance(heard, TurnEnd)
        self.ended = heard

    async def _next(self) -> Prefilled | str | TurnEnd:
        heard = await self._heard.get()
        if isinstance(heard, Exception):
            raise heard
        return heard


class Conversations:
    """Turns of many agents over ``memories`` and one scheduler. The engine is the caller's, and closed after this.

    A turn holds a thread while it lasts, of a pool of its own: the limiter bounds how many there are. Rows
    stay as long as there is room for bytes; the least recently used leave first.

    :param limiter: counts a turn from its request until it has ended, even where the client has gone
    :param model: what the model is called in requests
    :param special: the model's special tokens; None: as `special_tokens` finds them
    """

    def __init__(
        self, memories: AgentMemories, tokenizer: PreTrainedTokenizerBase, model: str, limiter: ConcurrencyLimiter,
        limits: ChatLimits | None = None, metrics: Metrics | None = None, scheduler: Scheduler | None = None,
        special: SpecialTokens | None = None,
    ) -> None:  # fmt: skip
        self.memories, self.tokenizer, self.model = memories, tokenizer, model
        self.limits, self.scheduler = limits or ChatLimits(), scheduler or Scheduler(memories.engine)
        self._limiter, self._metrics = limiter, metrics
        self.special = special or special_tokens(tokenizer, memories.engine.model.module)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by agent, while one is used
        self._threads = anyio.CapacityLimiter(math.inf)
        self._works: dict[asyncio.Task[None], Generation] = {}
        self._closed = False
        if metrics is not None:
            self._watch(metrics)

    @classmethod
    def of(
        cls, engine: Engine, tokenizer: PreTrainedTokenizerBase, model: str, limiter: ConcurrencyLimiter,
        folder: Path | None = None, limits: ChatLimits | None = None, metrics: Metrics | None = None, **knobs: Any,
    ) -> Conversations:  # fmt: skip
        """With memories of their own; ``knobs`` are `AgentMemories`', whose ``threshold`` is 0 here: whatever a prompt
        has in common with the one before it is kept, however long the answer was that came behind it.
        """
        coder, start = TokenizerCoder(tokenizer), start_tokens(tokenizer)
        memories = AgentMemories(engine, coder, folder=folder, **{"threshold": REUSE, "start": start, **knobs})
        return cls(memories, tokenizer, model, limiter, limits, metrics)

    # -- turns ---------------------------------------------------------------------------------------------------------

    def chat(
        self,
        agent: str,
        messages: Sequence[ChatMessage],
        max_tokens: int,
        stops: Sequence[str] = (),
        go_on: bool = False,
    ) -> Generation:
        """Begin a turn whose prompt is made of messages; see `prompt_of`."""
        return self.say(
            GenerationRequest(agent, partial(prompt_of, self.tokenizer, messages, go_on), max_tokens, stops)
        )

    def say(self, request: GenerationRequest) -> Generation:
        """Begin a turn. It goes on until it ends or is cancelled, whatever becomes of who asked."""
        if self._closed:
            raise Unavailable("this server is closing; ask another, or later")
        generation = Generation()
        generation.turn = Turn(
            self.memories, self.scheduler, self.special, request, self.limits.prompt_chars, generation.tell
        )
        generation.waiting = task = asyncio.create_task(self._serve(generation, generation.turn))
        self._works[task] = generation
        task.add_done_callback(self._served)
        return generation

    async def count(self, messages: Sequence[ChatMessage], go_on: bool = False) -> int:
        """Tokens of the prompt that `chat` makes of messages, for an agent without a memory. Raises as that does."""
        async with self._limiter.entered():
            return await self.in_thread(lambda: self._count(prompt_of(self.tokenizer, messages, go_on)))

    def _count(self, text: str) -> int:
        check_length(text, self.limits.prompt_chars)
        return len(TokenText.of(text, self.memories.coder, self.memories.start).ids)

    def _served(self, task: asyncio.Task[None]) -> None:
        generation = self._works.pop(task)
        if task.cancelled():
            generation.tell(Unavailable(GIVEN_UP))

    async def _serve(self, generation: Generation, turn: Turn) -> None:
        try:
            async with self._limiter.entered(turn.request.agent), self._lock(turn.request.agent):
                generation.waiting = None
                ended = await self.in_thread(lambda: self._run(turn))
        except Exception as error:
            generation.tell(error)
            return
        if self._metrics is not None and turn.prefilled is not None:
            prefilled, ttft = turn.prefilled, None if ended.ttft_ms is None else ended.ttft_ms / 1e3
            self._metrics.chatted(prefilled.kept + prefilled.new, prefilled.kept, ended.generated, ttft)
        generation.tell(ended)

    def _run(self, turn: Turn) -> TurnEnd:
        ended = turn.run()
        if ended.reason == Reason.CANCELLED.value:  # half an answer shall not be taken for a whole one
            raise Unavailable(GIVEN_UP)
        return ended

    def _lock(self, agent: str) -> asyncio.Lock:
        """Get the lock of an agent's turns; waiting ones get it in the order in which they came."""
        return self._locks.setdefault(agent, asyncio.Lock())

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run what blocks, without a share of the threads that everybody else uses."""
        return await anyio.to_thread.run_sync(work, limiter=self._threads)

    # -- agents --------------------------------------------------------------------------------------------------------

    async def forget(self, agent: str) -> bool:
        """Delete what an agent's rows hold of conversations, after its turns that wait; whether there was anything."""
        async with self._lock(agent):
            return await self.in_thread(lambda: self.memories.forget(agent))

    def _watch(self, metrics: Metrics) -> None:
        for name, about in (("agents", "held in memory"), ("bytes", "in memory"), ("disk_bytes", "on the disk")):
            metrics.watch(f"chat_{name}", f"Rows of conversations: {name} {about}", partial(self._stat, name))
        metrics.watch("chat_turns", "Turns in the works, waiting ones included", lambda: len(self._works))

    def _stat(self, name: str) -> int:
        return self.memories.stats()[name]

    # -- the end -------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Cancel what is in the works, wait for it, then write all rows. The engine is still open."""
        self._closed = True
        for generation in list(self._works.values()):
            generation.cancel()
        if self._works:
            await asyncio.wait(list(self._works))
        await self.in_thread(self._close)

    def _close(self) -> None:
        try:
            self.scheduler.close(cancel=True)
        finally:
            self.memories.close()
