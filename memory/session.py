"""Memory session of one agent: from changed segments and a query to a prefilled prompt."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import accumulate

from keep_agent.errors import CapacityError, ConfigError
from memory.construction.base import (
    Context,
    PinningBuilder,
    PreparedPrompt,
    PromptBuilder,
    RecomputeAllBuilder,
    SessionResources,
)
from memory.engine.base import ChunkSchedule, Engine, EngineCapabilities, PrefillResult, ScoreResult
from memory.kv_cache.packed_rows import DamagedError
from memory.method import MemoryMethod
from memory.prompt.layout import Placement, Unit, common_prefix
from memory.prompt.report import Counts, Prefill, StepTimer, Timings, UnitUse
from memory.recompute.full import Full
from memory.segments.graph import SegmentGraph
from memory.segments.groups import Flip
from memory.segments.sentence_encoder import SentenceEncoder
from memory.segments.snapshot import Snapshot
from memory.segments.store import SegmentStore
from memory.segments.transcript import Transcript

ROOM = 256  # positions kept free after a transcript for decoded tokens


class MemorySession:
    """Memory of one agent: write segments to ``store``, `prefill` a query after the memory, `advance` to the next step.

    :param encode_text: function from a segment's text to its token ids, without special tokens
    :param budget: most segments in a prompt
    :param context_ids: the context prefix of every prompt; with ``context=bos`` it must begin with the start token
    :param namespace: scope within which blocks are shared
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
        self._encoder = encoder
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
        self._new_context_tokens = 0  # context tokens encoded since the last prompt
        self._cold = True
        self._flips: list[Flip] = []  # changes of groups since the last prompt

    def prefill(
        self,
        query_text: str,
        query_ids: Sequence[int],
        restart: Callable[[], Sequence[int]] | None = None,
        front_ids: Sequence[int] = (),
        persist: bool = True,
        recompute_isolated: bool = False,
        instruction_ids: Sequence[int] = (),
        budget: int | None = None,
    ) -> Prefill:
        """Prefill ``[context][front_ids][memory][query_ids]``; the memory is chosen by ``query_text``.

        In the `append` layout ``front_ids`` and ``query_ids`` become part of the transcript. When it is full, a new
        transcript begins with the query that ``restart`` returns, which has to repeat the task and its latest turns.

        :param persist: False: copy no rows from the prompt's cache and add no turn; newly encoded units are stored
        :param recompute_isolated: for an important question, use no segment that was encoded alone. Constructions that
            harvest (copy rows from the cache) then store this prompt's rows even if ``persist`` is False. With others,
            all rows are computed and none is stored. Ignored in layout `append` and with a latent retrieval
        :param instruction_ids: the task's tokens. If a query begins with them, their rows stay until another query does
        :param budget: most segments in this prompt, if fewer than the session's
        :raises CapacityError: the prompt is longer than the model's positions
        :raises ConfigError: ``query_ids`` is empty
        """
        if not query_ids:
            raise ConfigError("query_ids is empty: give at least one token, after which the logits are computed")
        timer, clock, self._graph.embed_seconds = StepTimer(), time.perf_counter, 0.0
        began = clock()
        context = self._need_context()
        encoded = clock()
        self.update(settle=True)
        updated, update_embed = clock(), self._graph.embed_seconds
        units, query_ids, builder = self._plan(query_text, query_ids, restart, front_ids, persist, budget)
        latent = self.method.retrieval.capabilities.latent  # True: only some blocks enter the prompt
        if recompute_isolated and self._transcript is None and not latent:
            persist = builder.harvests
            builder = builder if persist else RecomputeAllBuilder(self.engine)
        elif not persist:
            builder = builder.temporary()
        if self.method.construction.capabilities.keeps_cache:
            builder.mark_instruction(common_prefix(query_ids, instruction_ids))
        if not latent:
            rows = len(context.ids) + sum(len(unit.token_ids) for unit in units) + len(query_ids)
            self._check_length(rows, 0)  # before any row is encoded
        prompt, result = self._compute(builder, units, query_ids, context, timer)
        seconds = timer.seconds
        seconds["load"] = result.trace.timings["load"]
        seconds["prefill"] -= seconds["load"]
        seconds["encode"] += encoded - began
        seconds["embed"] = self._graph.embed_seconds
        seconds["update"] = updated - encoded - update_embed
        seconds["retrieve"] = clock() - began - seconds.total()
        return self._close(prompt, result, query_ids, timer, persist)

    def update(self, settle: bool = False) -> None:
        """Update the groups with all segments changed since the last update, as if they had been written together.

        :param settle: let groups without recent changes become static, as a prompt does
        """
        self._flips += self._graph.update(self.store, settle)

    def prepare(self, query_text: str, tokens: int) -> tuple[int, int]:
        """Encode units without a block (about ``tokens`` tokens, at least one unit) before a prompt for ``query_text``.

        Results of later prompts stay the same. Call `update` first. Only isolated units (encoded alone) can be encoded.

        :returns: tokens encoded, and tokens still without a block
        """
        if self._transcript is not None:
            return 0, 0
        context, self._new_context_tokens = self._need_context(), 0
        with self._graph.quiet_as_static(self.store):
            units, _, builder = self._plan(query_text, (), None, (), persist=False)
        if not self.method.retrieval.capabilities.latent:
            units = _fitting(units, self.engine.info.max_positions - len(context.ids))
        return builder.prepare(units, context, tokens)

    def snapshot(self) -> Snapshot:
        """Return the segments and groups; keys and values are not part of it."""
        self.update()
        return Snapshot.of(self.store)

    def load(self, snapshot: Snapshot, blocks: bool = True) -> None:
        """Replace the memory by a snapshot; ``blocks`` as in `reset`."""
        self.reset(blocks)
        self.store.restore(snapshot.segments, snapshot.step, snapshot.created)
        self._graph.restore(self.store, snapshot)

    def embed(self, texts: Sequence[str]) -> None:
        """Encode texts of segments: a caching encoder then has their vectors at a later `load`."""
        self._encoder.encode(texts)

    def append_turn(self, token_ids: Sequence[int]) -> None:
        """Add the result of the last query (the decided skill) to the transcript of the `append` layout."""
        if self._transcript is None:
            raise ConfigError(f"method {self.method.name!r} rebuilds its prompt; append_turn needs layout append")
        self._transcript.append(token_ids)

    def score(
        self, prefill: Prefill, candidates: Sequence[Sequence[int]], reduce: str = "sum", best: int | None = None
    ) -> ScoreResult:
        """Return each candidate's log-likelihood after the prompt; all but the ``best`` highest may be -inf.

        :param reduce: "sum" or "mean" over the candidate's tokens
        :raises CapacityError: the model has no positions left for the longest candidate
        """
        self._room_after(prefill, max(map(len, candidates), default=1) - 1)  # the last token needs no row
        return self.engine.score(prefill.cache, candidates, reduce, best)

    def generate(
        self, prefill: Prefill, max_new_tokens: int, stop_ids: Collection[int] = (), keep: bool = False
    ) -> list[int]:
        """Continue the prompt greedily, within the model's positions; ``keep`` leaves the new rows in the cache.

        :raises CapacityError: no position is left
        """
        cache = prefill.cache
        length, logits = cache.length, cache.logits
        ids = self.engine.generate(cache, logits, min(max_new_tokens, self._room_after(prefill, 1)), stop_ids)
        if not keep:
            cache.rewind(length, logits)
        return ids

    def extend(self, prefill: Prefill, token_ids: Sequence[int]) -> None:
        """Append given tokens to the prompt, which `score` and `generate` then continue.

        :raises CapacityError: no position is left
        """
        if token_ids:
            self._room_after(prefill, len(token_ids))
            self.engine.append(prefill.cache, token_ids)

    def pin(self, token_ids: Sequence[int], extra_key: str = "") -> None:
        """Encode tokens, and keep their block beyond this session for all sessions that use the same extra key.

        :param extra_key: "": the session's namespace
        :raises CapacityError: the block does not fit into the method's pinned pool
        """
        self._pinning().pin(token_ids, extra_key, self._need_context())

    def unpin(self, token_ids: Sequence[int], extra_key: str = "") -> None:
        """Unpin tokens; a prompt that already uses their block keeps it."""
        self._pinning().unpin(token_ids, extra_key)

    def is_pinned(self, token_ids: Sequence[int], extra_key: str = "") -> bool:
        return self._pinning().is_pinned(token_ids, extra_key)

    def advance(self) -> None:
        """Begin the next step."""
        self.store.advance()

    def reset(self, blocks: bool = True) -> None:
        """Delete all segments and, unless ``blocks`` is False, their blocks. The context's keys and values stay."""
        self.store.clear()
        self._flips = []
        if blocks:
            self._builder.stop_sharing()
        self._builder.reset()
        if self._transcript is not None:
            self._transcript.clear()
        if blocks:
            self._lease.release()
            self._cold = True

    def close(self) -> None:
        """Release the memory; a storage that persists keeps the blocks for a later session."""
        self._builder.stop_sharing()
        self.reset(blocks=False)
        self._lease.release(delete=not self.method.storage.capabilities.persists)

    def _make_transcript(self) -> Transcript:
        room = self.engine.info.max_positions - len(self._context_ids) - ROOM
        latent = self.method.retrieval.capabilities.latent  # True: the transcript may be of any length
        return Transcript(math.inf if latent else room, self._newline)

    def _make_builder(self) -> PromptBuilder:
        if not self.method.recompute.capabilities.reads_blocks:
            return RecomputeAllBuilder(self.engine)
        return self.method.construction.builder(self._resources)

    def _pinning(self) -> PinningBuilder:
        if not self.method.construction.capabilities.pins:
            raise ConfigError(
                f"memory method {self.method.name!r} does not look segments up by their tokens, so it would find "
                "no pinned block: use construction Segments"
            )
        return self._builder

    def _need_context(self) -> Context:
        """Return the context, encoded at first use; the next prompt counts its tokens as encoded."""
        if self._context is None:
            ids, block, prefix, visible = self._context_ids, None, None, 0
            if ids and self._builder.reads_context:
                (block,) = self.engine.encode([(None, ids)])
                visible = {"none": 0, "bos": 1, "system": len(ids)}[self.method.context]
                prefix = block.part(0, visible) if visible else None
                self._new_context_tokens = len(ids)
            self._context = Context(ids, block, ids[:visible], prefix)
        return self._context

    def _plan(
        self,
        query_text: str,
        query_ids: Sequence[int],
        restart: Callable[[], Sequence[int]] | None,
        front_ids: Sequence[int],
        persist: bool,
        budget: int | None = None,
    ) -> tuple[list[Unit], Sequence[int], PromptBuilder]:
        """Return the units of the chosen segments, in prompt order, the query after them, and the builder to use."""
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
            self._check_length(len(self._context_ids) + rows, rows)  # before the old transcript is dropped
            if persist:
                self._transcript = transcript
            else:  # the old transcript stays, with its builder
                builder = self._make_builder()
        return [transcript.memory(segments, self.store)], query_ids, builder

    def _compute(
        self, builder: PromptBuilder, units: Sequence[Unit], query: Sequence[int], context: Context, timer: StepTimer
    ) -> tuple[PreparedPrompt, PrefillResult]:
        """Build and compute a prompt; do both again for each block that turns out to be damaged.

        Before the next attempt all blocks of the prompt are verified. Timings include failed attempts, and counts
        include the blocks that failed attempts encoded.

        :raises DamagedError: a block is damaged a second time
        """
        damaged: set[str] = set()
        encoded: dict[str, int] = {}  # tokens of the blocks that earlier attempts encoded, by identity
        while True:
            placements: tuple[Placement, ...] = ()
            stored = self._lease.stored = {}
            try:
                prompt = builder.build(units, query, context, timer)
                placements = prompt.layout.placements
                if encoded:  # blocks that earlier attempts encoded are not hits
                    placements = tuple(replace(p, hit=p.hit and p.identity not in encoded) for p in placements)
                    layout = replace(prompt.layout, placements=placements)
                    prompt = replace(prompt, layout=layout, encoded=prompt.encoded + sum(encoded.values()))
                return prompt, self._prefill(prompt, timer)
            except DamagedError as error:
                if error.identity in damaged:
                    raise
                damaged.add(error.identity)
                self._lease.discard(error.identity)
            if not builder.harvests:
                encoded |= stored
            for placement in placements:
                self._lease.verify(placement.identity)

    def _prefill(self, prompt: PreparedPrompt, timer: StepTimer) -> PrefillResult:
        layout, began = prompt.layout, time.perf_counter()
        self._check_length(layout.rows, int(layout.fresh.sum()))
        try:
            if prompt.cache is not None:
                result = self.engine.extend(prompt.cache, layout.token_ids[prompt.prefix :], ChunkSchedule())
                last = self.engine.info.layers - 1
                result.trace.last_layer = tuple(last if s.stop > prompt.prefix else -1 for s in layout.segments)
                return result
            result = self.engine.prefill(
                layout,
                Full() if layout.fresh.all() else copy.copy(self.method.recompute),  # a copy holds this prompt's state
                copy.copy(self.method.loading),
                prompt.context_block,
                self._builder.harvests,
                prompt.layer_rows,
                prompt.unit_context,
            )
            for block in result.encoded:
                self._lease.put(block)
            return result
        finally:
            timer.seconds["prefill"] += time.perf_counter() - began

    def _close(
        self, prompt: PreparedPrompt, result: PrefillResult, query_ids: Sequence[int], timer: StepTimer, persist: bool
    ) -> Prefill:
        """Keep the computed rows for later prompts if ``persist``, and return the report of the prompt."""
        began = time.perf_counter()
        if persist:
            self._builder.store_rows(prompt, result)
            if self._transcript is not None:
                self._transcript.close(self.store, query_ids)
        after_ms = 1e3 * (time.perf_counter() - began) if persist else 0.0
        self._lease.next_prompt()
        flips, self._flips = tuple(self._flips), []
        cold, self._cold = self._cold, self._cold and not persist
        context_tokens, self._new_context_tokens = self._new_context_tokens, 0
        units = tuple(
            UnitUse(p.unit.kind, p.start, p.stop - p.start, tuple(s.segment for s in p.unit.spans), p.identity, p.hit)
            for p in prompt.layout.placements
        )
        return Prefill(
            logits=result.logits,
            cache=result.cache,
            trace=result.trace,
            layout=prompt.layout,
            units=units,
            flips=flips,
            counts=_counts(prompt, units, result, context_tokens),
            timings=Timings(**{part: 1e3 * seconds for part, seconds in timer.seconds.items()}),
            cold=cold,
            after_ms=after_ms,
            reads=result.cache.reads,
        )

    def _check_length(self, rows: int, new: int) -> None:
        """Raise CapacityError for a prompt of too many ``rows``, of which ``new`` are this turn's own."""
        limit, retrieval = self.engine.info.max_positions, self.method.retrieval
        if rows > limit:
            remedy = f"lower prompt.budget={self.budget} (with memory/retrieval=embedding)"
            if retrieval.capabilities.latent:
                remedy = f"lower memory.retrieval.top_k={retrieval.top_k} ({new} of the tokens are this turn's own)"
            raise CapacityError(f"a prompt of {rows} tokens is longer than the model's {limit} positions; {remedy}")

    def _room_after(self, prefill: Prefill, needed: int) -> int:
        """Return the positions left after the prompt. Raises CapacityError for fewer than ``needed``."""
        latent = self.method.retrieval.capabilities.latent  # True: rows may have any position in the transcript
        rows = prefill.cache.length if latent else prefill.cache.next_position
        limit = self.engine.info.max_positions
        if limit - rows < needed:
            raise CapacityError(
                f"{needed} more tokens after a prompt of {rows} tokens do not fit into the model's {limit} positions; "
                f"lower prompt.budget={self.budget}"
            )
        return limit - rows


def _counts(prompt: PreparedPrompt, units: Sequence[UnitUse], result: PrefillResult, context_tokens: int) -> Counts:
    """Count rows and token-layers (rows x layers) of a prompt; ``context_tokens`` were encoded for its context."""
    layout, trace, layers = prompt.layout, result.trace, len(result.trace.active_rows)
    query, memory = layout.rows - layout.query, layout.query - layout.context
    hit = sum(unit.tokens for unit in units if unit.hit)
    fresh_context = context_tokens + int(layout.fresh[: layout.context].sum())
    return Counts(
        layers=layers,
        prompt_tokens=layout.rows,
        memory_tokens=memory,
        fresh_tokens=fresh_context + memory - hit + query,
        hit_tokens=hit,
        invalidated_tokens=prompt.invalidated,
        token_layers=sum(trace.active_rows),
        recomputed_token_layers=sum(trace.recomputed_rows[1:]),
        encoded_token_layers=(context_tokens + prompt.encoded) * layers + prompt.query_token_layers,
        loaded_bytes=sum(load.nbytes for load in trace.loads),
        prefix_tokens=prompt.prefix,
        live_tokens=result.cache.length,
        longest_tokens=layout.rows,
    )


def _fitting(units: Sequence[Unit], room: int) -> list[Unit]:
    """Return the first units, ``room`` tokens at most."""
    ends = accumulate(len(unit.token_ids) for unit in units)
    return [unit for unit, end in zip(units, ends, strict=True) if end <= room]


def _needs(method: MemoryMethod) -> EngineCapabilities:
    parts = method.capabilities
    return EngineCapabilities(
        selective_recompute=parts.repairs,
        per_layer_rows=parts.per_layer,
        session_caches=parts.keeps_cache,
        quantized_caches=parts.keeps_cache and method.packs is not None,
    )
