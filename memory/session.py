"""One agent's memory between turns: from changed segments and a query to a prefilled prompt."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import accumulate

from keep_agent.errors import CapacityError, ConfigError
from memory.construction.base import (
    Context,
    PinningBuilder,
    PreparedPrompt,
    PromptBuilder,
    RecomputeAllBuilder,
    SessionResources,
    with_retry,
)
from memory.engine.base import ChunkSchedule, Engine, EngineCapabilities, PrefillResult, ScoreResult
from memory.kv_cache.block import KVBlock
from memory.method import MemoryMethod
from memory.prompt.layout import Unit, common_prefix
from memory.prompt.report import Prefill, StepTimer, TimedEncoder, Timings, count
from memory.recompute.full import Full
from memory.segments.graph import SegmentGraph
from memory.segments.groups import Flip
from memory.segments.sentence_encoder import SentenceEncoder
from memory.segments.snapshot import Snapshot
from memory.segments.store import SegmentStore
from memory.segments.transcript import Transcript

ROOM = 256  # positions kept free behind a transcript for what is decoded


class MemorySession:
    """Write segments to ``store``, ``prefill`` a query behind the memory, ``advance`` to the next step.

    :param encode_text: token ids of a segment's text, without special tokens
    :param budget: segments in a prompt at most
    :param context_ids: the context prefix of every prompt; with ``context=bos`` its first token is the start token
    :param namespace: blocks are shared only within it
    """

    def __init__(
        self,
        engine: Engine,
        method: MemoryMethod,
        encoder: SentenceEncoder,
        encode_text: Callable[[str], Sequence[int]],
        budget: int = 40,
        context_ids: Sequence[int] = (),
        namespace: str = "",
    ) -> None:
        if method.context == "bos" and not context_ids:
            raise ConfigError("context=bos needs a context prefix that begins with the start token, but there is none")
        if budget < 1:
            raise ConfigError(f"budget={budget} leaves no room for a segment: use 1 or more")
        engine.capabilities.require(_needs(method), f"memory method {method.name!r}")
        self.engine, self.method, self.budget = engine, method, budget
        self._encoder = TimedEncoder(encoder)
        self._graph = SegmentGraph(self._encoder, method.grouping)
        self.store = SegmentStore(encode_text, self._graph)
        method.storage.open(engine.model_key)
        method.retention.open(engine.info.weights_key, engine.info.head_dim)
        self._lease = method.pool.lease(namespace)
        self._resources = SessionResources(engine, method, self._lease, self.store, namespace)
        self._context_ids, self._newline = tuple(context_ids), encode_text("\n")
        self._builder = self._make_builder()
        self._transcript = self._make_transcript() if method.layout == "append" else None
        self._context: Context | None = None
        self._new_context_tokens = 0  # encoded for the context, and counted by no prompt yet
        self._cold = True
        self._flips: list[Flip] = []  # that no prompt has reported yet

    def prefill(
        self,
        query_text: str,
        query_ids: Sequence[int],
        restart: Callable[[], Sequence[int]] | None = None,
        front_ids: Sequence[int] = (),
        lasting: bool = True,
        whole: bool = False,
        instruction_ids: Sequence[int] = (),
        budget: int | None = None,
    ) -> Prefill:
        """Prefill ``[context][front_ids][memory][query_ids]``; the memory is chosen by ``query_text``.

        In the `append` layout ``query_ids`` become part of the transcript, which holds ``front_ids`` behind earlier
        turns. A transcript without room restarts with the query that ``restart`` returns, which has to repeat what
        earlier turns said.

        :param lasting: False: this prompt leaves no trace: none of its rows is harvested, no transcript holds it
        :param whole: of a prompt that is rebuilt at every step no isolated unit is reused, for a question that is asked
            once and decides much. Rows that earlier prompts computed are reused, and this prompt's are kept, whatever
            ``lasting`` says
        :param instruction_ids: the task. A retention stage keeps the rows of the last query that begins with them
        :param budget: segments of this prompt at most, if fewer than the session's
        :raises CapacityError: the prompt is longer than the model's positions
        :raises ConfigError: ``query_ids`` is empty
        """
        if not query_ids:
            raise ConfigError("query_ids is empty: give at least one token, behind which the logits are wanted")
        timer = self._encoder.timer = StepTimer()
        with timer.part("encode"):
            context = self._need_context()
        with timer.part("update"):
            self.update(settle=True)
        with timer.part("retrieve"):
            units, query_ids, builder = self._plan(query_text, query_ids, restart, front_ids, lasting, budget)
            if whole and self._rebuilds:
                lasting = builder.harvests
                builder = builder if lasting else RecomputeAllBuilder(self.engine)
            elif not lasting:
                builder = builder.detached()
            builder.instruct(common_prefix(query_ids, instruction_ids))
        if not self.method.retrieval.capabilities.latent:  # else only some of the units enter the prompt
            rows = len(context.ids) + sum(len(unit.token_ids) for unit in units) + len(query_ids)
            self._check_length(rows, 0)  # before any is encoded

        def build() -> PreparedPrompt:
            with timer.part("retrieve"):
                return builder.build(units, query_ids, context, timer)

        prompt, result = with_retry(self._lease, timer, build, partial(self._compute, timer), not builder.harvests)
        flips, self._flips = tuple(self._flips), []
        return self._close(prompt, result, query_ids, flips, timer, lasting)

    def update(self, settle: bool = False) -> None:
        """Let groups follow the changed segments now; a prompt does so for what has changed since.

        When it is called decides which segments are seen to come together, and so how they are grouped.

        :param settle: what was quiet for long enough becomes static, as it does with a prompt
        """
        self._flips += self._graph.update(self.store, settle)

    def prepare(self, query_text: str, tokens: int) -> tuple[int, int]:
        """Encode blocks ahead that a prompt for ``query_text`` would lack: about ``tokens`` tokens, a unit at least.

        Nothing else changes, no choice and no group: a prompt is what it would have been. So `update` has to have
        followed what was put. Only isolated units can be encoded ahead; what a method harvests from its prompts cannot.

        :returns: tokens encoded, and those still lacking
        """
        if self._transcript is not None:
            return 0, 0
        context, self._new_context_tokens = self._need_context(), 0
        with self._graph.settled(self.store):
            units, _, builder = self._plan(query_text, (), None, (), lasting=False)
        if not self.method.retrieval.capabilities.latent:
            units = _fitting(units, self.engine.info.max_positions - len(context.ids))
        return builder.prepare(units, context, tokens)

    def snapshot(self) -> Snapshot:
        """What is remembered; keys and values are not in it."""
        self.update()
        return Snapshot.of(self.store)

    def load(self, snapshot: Snapshot, blocks: bool = True) -> None:
        """Remember what was remembered then, and nothing else; ``blocks`` as in `reset`."""
        self.reset(blocks)
        self.store.restore(snapshot.segments, snapshot.step, snapshot.created)
        self._graph.restore(self.store, snapshot)

    def embed(self, texts: Sequence[str]) -> None:
        """Have the vectors of segments that `load` is about to bring, where the encoder remembers them."""
        self._encoder.encode(texts)

    def append_turn(self, token_ids: Sequence[int]) -> None:
        """Add what came of the last query (the decided skill) to the transcript of the `append` layout."""
        if self._transcript is None:
            raise ConfigError(
                f"memory method {self.method.name!r} rebuilds its prompt; append_turn needs layout append"
            )
        self._transcript.append(token_ids)

    def score(
        self, prefill: Prefill, candidates: Sequence[Sequence[int]], reduce: str = "sum", best: int | None = None
    ) -> ScoreResult:
        """Log-likelihood of every candidate behind the prompt; where the ``best`` are wanted, -inf for some others.

        :raises CapacityError: the model has no positions left for the longest candidate
        """
        self._room_behind(prefill, max(map(len, candidates), default=1) - 1)  # nothing is read behind a last token
        return self.engine.score(prefill.cache, candidates, reduce, best)

    def generate(
        self, prefill: Prefill, max_new_tokens: int, stop_ids: Collection[int] = (), keep: bool = False
    ) -> list[int]:
        """Greedy continuation of the prompt; ``keep`` makes it part of the prompt for what is scored next.

        It ends where the model's positions do.

        :raises CapacityError: there is not one left
        """
        cache = prefill.cache
        length, logits = cache.length, cache.logits
        ids = self.engine.generate(cache, logits, min(max_new_tokens, self._room_behind(prefill, 1)), stop_ids)
        if not keep:
            cache.rewind(length, logits)
        return ids

    def pin(self, token_ids: Sequence[int], extra_key: str = "") -> None:
        """Pin knowledge that outlives this session, for all sessions of the method that ask under the same extra key.

        :param extra_key: the session's namespace if left out
        :raises CapacityError: it does not fit into the method's pinned pool
        """
        self._pinning().pin(token_ids, extra_key, self._need_context())

    def unpin(self, token_ids: Sequence[int], extra_key: str = "") -> None:
        """Delete what was pinned; a prompt that is being assembled from it keeps it."""
        self._pinning().unpin(token_ids, extra_key)

    def is_pinned(self, token_ids: Sequence[int], extra_key: str = "") -> bool:
        return self._pinning().is_pinned(token_ids, extra_key)

    def advance(self) -> None:
        """The world has moved on by one step."""
        self.store.advance()

    def reset(self, blocks: bool = True) -> None:
        """Forget all segments and blocks. The context prefix is no memory: its keys and values stay.

        ``blocks=False``: what was encoded stays, for whoever reads the same text again.
        """
        self.store.clear()
        self._flips = []
        if blocks:
            self._builder.unshare()
        self._builder.reset()
        if self._transcript is not None:
            self._transcript.clear()
        if blocks:
            self._lease.release()
            self._cold = True

    def close(self) -> None:
        """Let go of the memory, for good; a storage that persists keeps the blocks, for whoever restores it."""
        self._builder.unshare()
        self.reset(blocks=False)
        self._lease.release(delete=not self.method.storage.capabilities.persists)

    @property
    def _rebuilds(self) -> bool:
        """Is all of a prompt known before it is assembled, the chosen segments' text?"""
        return self._transcript is None and not self.method.retrieval.capabilities.latent

    def _make_transcript(self) -> Transcript:
        room = self.engine.info.max_positions - len(self._context_ids) - ROOM
        latent = self.method.retrieval.capabilities.latent  # then the pool may be of any length
        return Transcript(math.inf if latent else room, self._newline)

    def _make_builder(self) -> PromptBuilder:
        if not self.method.recompute.capabilities.reads_blocks:
            return RecomputeAllBuilder(self.engine)
        return self.method.construction.builder(self._resources)

    def _pinning(self) -> PinningBuilder:
        if not self.method.construction.capabilities.pins:
            raise ConfigError(
                f"memory method {self.method.name!r} does not look segments up by their tokens, so nothing that is "
                "pinned would be found: use construction Segments"
            )
        return self._builder

    def _need_context(self) -> Context:
        """Return the context, encoded at first use; the next prompt counts its tokens."""
        if self._context is not None:
            return self._context
        ids = self._context_ids
        if not ids or not self._builder.reads_context:
            self._context = Context(ids)
            return self._context
        (block,) = self.engine.encode([(None, ids)])
        seen = {"none": 0, "bos": 1, "system": len(ids)}[self.method.context]
        first = block if seen == len(ids) else KVBlock("", block.k[:, :, :seen], block.v[:, :, :seen])
        self._context, self._new_context_tokens = Context(ids, block, ids[:seen], first if seen else None), len(ids)
        return self._context

    def _plan(
        self,
        query_text: str,
        query_ids: Sequence[int],
        restart: Callable[[], Sequence[int]] | None,
        front_ids: Sequence[int],
        lasting: bool,
        budget: int | None = None,
    ) -> tuple[list[Unit], Sequence[int], PromptBuilder]:
        """Return the units of the chosen segments, in prompt order, the query behind them, and the builder of both."""
        budget = self.budget if budget is None else min(budget, self.budget)
        ids = self.method.retrieval.select(query_text, self.store, budget)
        segments = [self.store.get(id) for id in ids]
        transcript, builder = self._transcript, self._builder
        if transcript is None:
            front = [Unit("new", tuple(front_ids), (), reusable=False)] if front_ids else []
            return [*front, *self.method.construction.plan(segments, self.store, self.store.step)], query_ids, builder
        query_ids = [*front_ids, *query_ids]
        if not transcript.fits(segments, self.store, query_ids):
            query_ids = query_ids if restart is None else [*front_ids, *restart()]
            transcript = self._make_transcript()
            rows = len(transcript.memory(segments, self.store).token_ids) + len(query_ids)
            self._check_length(len(self._context_ids) + rows, rows)  # before the old one is forgotten
            if lasting:
                self._transcript = transcript
            else:  # a prompt without trace: another transcript, and nothing harvested of it
                builder = self._make_builder()
        return [transcript.memory(segments, self.store)], query_ids, builder

    def _close(
        self,
        prompt: PreparedPrompt,
        result: PrefillResult,
        query_ids: Sequence[int],
        flips: tuple[Flip, ...],
        timer: StepTimer,
        lasting: bool,
    ) -> Prefill:
        """Keep the computed rows for later prompts, and report the prompt."""
        loading = result.trace.timings["load"]
        timer.add("load", loading)
        timer.add("prefill", -loading)
        after = StepTimer()
        if lasting:
            with after.part("after"):
                self._builder.after(prompt, result)
            if self._transcript is not None:
                self._transcript.close(self.store, query_ids)
        self._lease.next_prompt()
        cold, self._cold = self._cold, self._cold and not lasting
        context_tokens, self._new_context_tokens = self._new_context_tokens, 0
        return Prefill(
            result=result,
            layout=prompt.layout,
            units=prompt.units,
            flips=flips,
            counts=count(
                prompt.layout,
                prompt.units,
                result.trace,
                context_tokens,
                prompt.encoded,
                prompt.invalidated,
                prompt.query_token_layers,
                prompt.prefix,
                result.cache.length,
            ),
            timings=Timings(**{part: 1e3 * seconds for part, seconds in timer.seconds.items()}),
            cold=cold,
            after_ms=1e3 * after.seconds.get("after", 0.0),
            reads=result.cache.reads,
        )

    def _compute(self, timer: StepTimer, prompt: PreparedPrompt) -> PrefillResult:
        self._check_length(prompt.layout.rows, int(prompt.layout.fresh.sum()))
        with timer.part("prefill"):
            return self._prefill(prompt)

    def _prefill(self, prompt: PreparedPrompt) -> PrefillResult:
        if prompt.cache is not None:
            result = self.engine.extend(prompt.cache, prompt.layout.token_ids[prompt.prefix :], ChunkSchedule())
            last = self.engine.info.layers - 1
            result.trace.last_layer = tuple(last if s.stop > prompt.prefix else -1 for s in prompt.layout.segments)
            return result
        recompute = Full() if prompt.layout.fresh.all() else copy.copy(self.method.recompute)
        result = self.engine.prefill(
            prompt.layout,
            recompute,  # a copy, like the next: stages hold one prompt's state
            copy.copy(self.method.loading),
            prompt.context_block,
            self._builder.harvests,
            prompt.slots,
            prompt.seen_block,
        )
        for block in result.encoded:
            self._lease.put(block)
        return result

    def _check_length(self, rows: int, new: int) -> None:
        """Raises CapacityError for a prompt of too many ``rows``, of which ``new`` are this turn's own."""
        limit, retrieval = self.engine.info.max_positions, self.method.retrieval
        if rows <= limit:
            return
        remedy = f"lower prompt.budget={self.budget} (with memory/retrieval=embedding)"
        if retrieval.capabilities.latent:
            remedy = f"lower memory.retrieval.top_k={retrieval.top_k} ({new} of the tokens are this turn's own)"
        raise CapacityError(f"a prompt of {rows} tokens is longer than the model's {limit} positions; {remedy}")

    def _room_behind(self, prefill: Prefill, needed: int) -> int:
        """Positions that the model has behind the prompt's. Raises CapacityError for fewer than ``needed``."""
        latent = self.method.retrieval.capabilities.latent  # then rows may lie anywhere in the transcript
        rows = prefill.cache.length if latent else prefill.cache.next_position
        limit = self.engine.info.max_positions
        if limit - rows < needed:
            raise CapacityError(
                f"{needed} more behind a prompt of {rows} do not fit into the model's {limit} positions; lower "
                f"prompt.budget={self.budget}"
            )
        return limit - rows


def _fitting(units: Sequence[Unit], room: int) -> list[Unit]:
    """The first units, ``room`` tokens at most: no prompt is longer."""
    ends = accumulate(len(unit.token_ids) for unit in units)
    return [unit for unit, end in zip(units, ends, strict=True) if end <= room]


def _needs(method: MemoryMethod) -> EngineCapabilities:
    """Abilities of an engine that a memory method needs."""
    parts = method.capabilities
    return EngineCapabilities(
        selective_recompute=parts.repairs,
        per_layer_rows=parts.per_layer,
        session_caches=parts.keeps_cache,
        quantized_caches=parts.keeps_cache and method.packs is not None,
    )
