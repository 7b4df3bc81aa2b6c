"""One agent's memory between turns: from changed segments and a query to a prefilled prompt."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import accumulate

from keep_agent.errors import CapacityError, ConfigError
from memory.construction.any_offset import AnyOffsetBuilder
from memory.construction.base import Context, PreparedPrompt, PromptBuilder
from memory.construction.history_builder import HistoryBuilder
from memory.construction.isolated import IsolatedBuilder
from memory.construction.latent_choice import BlockChoice, UnitChoice
from memory.construction.prefix_builder import PrefixBuilder, common_prefix
from memory.construction.recompute_all import RecomputeAllBuilder
from memory.construction.retry import with_retry
from memory.construction.turns_builder import TurnsBuilder
from memory.engine.results import PrefillResult, ScoreResult
from memory.engine.transformers.append import ChunkSchedule
from memory.engine.transformers.engine import Engine
from memory.kv_cache.block import KVBlock
from memory.kv_cache.cache_provider import CacheProvider, PagedCacheProvider, QuantizedCacheProvider
from memory.method import MemoryMethod
from memory.recompute.full import Full
from memory.reports.prefill import Prefill, Timings, count
from memory.reports.timing import StepTimer, TimedEncoder
from memory.segments.graph import SegmentGraph
from memory.segments.groups import Flip
from memory.segments.sentence_encoder import SentenceEncoder
from memory.segments.snapshot import Snapshot
from memory.segments.store import SegmentStore
from memory.segments.transcript import Transcript
from memory.stages import Unit

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
        self.engine, self.method, self.budget = engine, method, budget
        self._encoder = TimedEncoder(encoder)
        self._graph = SegmentGraph(self._encoder, method.grouping)
        self.store = SegmentStore(encode_text, self._graph)
        method.storage.open(engine.model_key)
        method.retention.open(engine.spec.weights_key, engine.spec.head_dim)
        self._holder = method.pool.lease(namespace)
        self._namespace, self._context_ids = namespace, tuple(context_ids)
        self._newline = encode_text("\n")
        self._assembler = self._make_assembler()
        self._transcript = self._make_transcript() if method.layout == "append" else None
        self._context: Context | None = None
        self._opened = 0  # tokens encoded for the context that no prompt has counted yet
        self._cold = True
        self._flips: list[Flip] = []  # that no prompt has reported yet

    def prefill(
        self,
        query_text: str,
        query_ids: Sequence[int],
        anew: Callable[[], Sequence[int]] | None = None,
        front_ids: Sequence[int] = (),
        lasting: bool = True,
        whole: bool = False,
        instruction_ids: Sequence[int] = (),
        budget: int | None = None,
    ) -> Prefill:
        """Logits behind ``[context][front_ids][memory][query_ids]``; ``query_text`` is what segments are chosen by.

        ``front_ids`` is new text that is to be read before the memory; a transcript, which begins with old turns,
        tells it with the query. ``lasting=False`` asks aside: no row of this turn is harvested, no transcript tells it.
        ``whole``: of a prompt that is rebuilt at every step nothing that was encoded apart is reused, for what is asked
        once and decides much. Rows that earlier prompts computed are, and this one's are kept for those to come,
        whatever ``lasting`` says.
        ``budget``: segments of this prompt at most, if fewer than the session's do.

        ``instruction_ids`` say what is to be done. From a query on that begins with them, or with the first of them, a
        retention stage keeps those rows until another does.

        In the `append` layout ``query_ids`` become part of the transcript. Where that has no room left it begins anew,
        with the query that ``anew`` gives, which has to say what earlier turns said.

        :raises CapacityError: the prompt is longer than the model's positions
        :raises ConfigError: ``query_ids`` is empty
        """
        if not query_ids:
            raise ConfigError("query_ids is empty: give at least one token, behind which the logits are wanted")
        clock = self._encoder.clock = StepTimer()
        with clock.part("encode"):
            context = self._need_context()
        with clock.part("update"):
            self.update(settle=True)
        with clock.part("retrieve"):
            units, query_ids, assembler = self._plan(query_text, query_ids, anew, front_ids, lasting, budget)
            if whole and self._rebuilds:
                lasting = assembler.harvests
                assembler = assembler if lasting else RecomputeAllBuilder(self.engine)
            elif not lasting:
                assembler = assembler.aside()
            assembler.instruct(common_prefix(query_ids, instruction_ids))
        if not self.method.retrieval.capabilities.latent:  # else only some of the units enter the prompt
            rows = len(context.ids) + sum(len(unit.token_ids) for unit in units) + len(query_ids)
            self._check_length(rows, 0)  # before any is encoded

        def assemble() -> PreparedPrompt:
            with clock.part("retrieve"):
                return assembler.assemble(units, query_ids, context, clock)

        compute, encodes = partial(self._compute, clock), not assembler.harvests
        prompt, result = with_retry(self._holder, clock, assemble, compute, encodes)
        flips, self._flips = tuple(self._flips), []
        return self._close(prompt, result, query_ids, flips, clock, lasting)

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
        context, self._opened = self._need_context(), 0
        with self._graph.settled(self.store):
            units, _, assembler = self._plan(query_text, (), None, (), lasting=False)
        if not self.method.retrieval.capabilities.latent:
            units = _fitting(units, self.engine.spec.max_positions - len(context.ids))
        return assembler.prepare(units, context, tokens)

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
        self._reuse().pin(token_ids, extra_key, self._need_context())

    def unpin(self, token_ids: Sequence[int], extra_key: str = "") -> None:
        """Delete pinned knowledge; a prompt that is being assembled from it keeps it."""
        self._reuse().unpin(token_ids, extra_key)

    def is_pinned(self, token_ids: Sequence[int], extra_key: str = "") -> bool:
        return self._reuse().is_pinned(token_ids, extra_key)

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
            self._assembler.unshare()
        self._assembler.reset()
        if self._transcript is not None:
            self._transcript.clear()
        if blocks:
            self._holder.release()
            self._cold = True

    def close(self) -> None:
        """Let go of the memory, for good; a storage that persists keeps the blocks, for whoever restores it."""
        self._assembler.unshare()
        self.reset(blocks=False)
        self._holder.release(delete=not self.method.storage.capabilities.persists)

    @property
    def _rebuilds(self) -> bool:
        """Is all of a prompt known before it is assembled, the chosen segments' text?"""
        return self._transcript is None and not self.method.retrieval.capabilities.latent

    def _make_transcript(self) -> Transcript:
        room = self.engine.spec.max_positions - len(self._context_ids) - ROOM
        latent = self.method.retrieval.capabilities.latent  # then the pool may be of any length
        return Transcript(math.inf if latent else room, self._newline)

    def _make_assembler(self) -> PromptBuilder:
        method, namespace = self.method, self._namespace
        if not method.recompute.capabilities.reads_blocks:
            return RecomputeAllBuilder(self.engine)
        if method.chains:
            size, whole = method.construction.block_size, method.layout == "append"
            return PrefixBuilder(self.engine, self._holder, size, namespace, whole, method.capabilities.exact)
        if method.construction.assembly == "turns":
            return TurnsBuilder(self.engine, self._need_shelf(), method.construction, method.retention, namespace)
        if method.construction.assembly == "reuse":
            return AnyOffsetBuilder(self.engine, method, self._holder, self.store, namespace)
        latent = method.retrieval.capabilities.latent
        if method.construction.assembly == "history":
            choice = BlockChoice(self.engine, method.retrieval) if latent else None
            rules = repr((method.construction, method.recompute))
            return HistoryBuilder(self.engine, self._holder, method.construction, namespace, rules, choice)
        choice = UnitChoice(self.engine, method.retrieval) if latent else None
        lossless = method.storage.capabilities.exact
        return IsolatedBuilder(self.engine, self._holder, self.store, namespace, lossless, choice)

    def _need_shelf(self) -> CacheProvider:
        """The method's for this model; what the storage packs, the cache holds packed."""
        shelves, key, format = self.method.shelves, self.engine.model_key, self.method.packs
        if key not in shelves:
            construction = self.method.construction
            shelves[key] = (
                PagedCacheProvider(self.engine, construction)
                if format is None
                else QuantizedCacheProvider(self.engine, format)
            )
        return shelves[key]

    def _reuse(self) -> AnyOffsetBuilder:
        if not isinstance(self._assembler, AnyOffsetBuilder):
            raise ConfigError(
                f"memory method {self.method.name!r} does not look segments up by their tokens, so nothing that is "
                "pinned would be found: use construction Segments"
            )
        return self._assembler

    def _need_context(self) -> Context:
        """The context; if it has to be encoded, the next prompt counts that."""
        if self._context is not None:
            return self._context
        ids = self._context_ids
        if not ids or not self._assembler.reads_context:
            self._context = Context(ids)
            return self._context
        (block,) = self.engine.encode([(None, ids)])
        seen = {"none": 0, "bos": 1, "system": len(ids)}[self.method.context]
        first = block if seen == len(ids) else KVBlock("", block.k[:, :, :seen], block.v[:, :, :seen])
        self._context, self._opened = Context(ids, block, ids[:seen], first if seen else None), len(ids)
        return self._context

    def _plan(
        self,
        query_text: str,
        query_ids: Sequence[int],
        anew: Callable[[], Sequence[int]] | None,
        front_ids: Sequence[int],
        lasting: bool,
        budget: int | None = None,
    ) -> tuple[list[Unit], Sequence[int], PromptBuilder]:
        """The units of the chosen segments, in prompt order, the query behind them, and who assembles both."""
        room = self.budget if budget is None else min(budget, self.budget)
        chosen = self.method.retrieval.select(query_text, self.store, room)
        segments = [self.store.get(id) for id in chosen]
        transcript, assembler = self._transcript, self._assembler
        if transcript is None:
            front = [Unit("new", tuple(front_ids), (), reusable=False)] if front_ids else []
            return [*front, *self.method.construction.plan(segments, self.store, self.store.step)], query_ids, assembler
        query_ids = [*front_ids, *query_ids]
        if not transcript.fits(segments, self.store, query_ids):
            query_ids = query_ids if anew is None else [*front_ids, *anew()]
            transcript = self._make_transcript()
            rows = len(transcript.memory(segments, self.store).token_ids) + len(query_ids)
            self._check_length(len(self._context_ids) + rows, rows)  # before the old one is forgotten
            if lasting:
                self._transcript = transcript
            else:  # what is asked aside leaves no trace: another transcript, and nothing harvested of it
                assembler = self._make_assembler()
        return [transcript.memory(segments, self.store)], query_ids, assembler

    def _close(
        self,
        prompt: PreparedPrompt,
        result: PrefillResult,
        query_ids: Sequence[int],
        flips: tuple[Flip, ...],
        clock: StepTimer,
        lasting: bool,
    ) -> Prefill:
        """Keep what the turn has computed, and report it."""
        reads = result.cache.reads
        waited = result.trace.timings["load"]
        clock.add("load", waited)
        clock.add("prefill", -waited)
        after = StepTimer()
        if lasting:
            with after.part("after"):
                self._assembler.after(prompt, result)
            if self._transcript is not None:
                self._transcript.close(self.store, query_ids)
        self._holder.next_prompt()
        cold, self._cold = self._cold, self._cold and not lasting
        opened, self._opened = self._opened, 0
        return Prefill(
            result=result,
            layout=prompt.layout,
            units=prompt.units,
            flips=flips,
            counts=count(
                prompt.layout,
                prompt.units,
                result.trace,
                opened,
                prompt.encoded,
                prompt.invalidated,
                prompt.asked,
                prompt.prefix,
                result.cache.length,
            ),
            timings=Timings(**{part: 1e3 * seconds for part, seconds in clock.seconds.items()}),
            cold=cold,
            after_ms=1e3 * after.seconds.get("after", 0.0),
            reads=reads,
        )

    def _compute(self, clock: StepTimer, prompt: PreparedPrompt) -> PrefillResult:
        self._check_length(prompt.layout.rows, int(prompt.layout.fresh.sum()))
        with clock.part("prefill"):
            return self._prefill(prompt)

    def _prefill(self, prompt: PreparedPrompt) -> PrefillResult:
        if prompt.cache is not None:
            result = self.engine.extend(prompt.cache, prompt.layout.token_ids[prompt.prefix :], ChunkSchedule())
            last = self.engine.spec.layers - 1
            result.trace.last_layer = tuple(last if s.stop > prompt.prefix else -1 for s in prompt.layout.segments)
            return result
        recompute = Full() if prompt.layout.fresh.all() else copy.copy(self.method.recompute)
        stages = recompute, copy.copy(self.method.loading)  # they hold one prompt's state
        harvests = self._assembler.harvests
        given = prompt.context_block, harvests, prompt.slots, prompt.seen_block
        result = self.engine.prefill(prompt.layout, *stages, *given)
        for block in result.encoded:
            self._holder.put(block)
        return result

    def _check_length(self, rows: int, new: int) -> None:
        """Raises CapacityError for a prompt of too many ``rows``, of which so many are this turn's own."""
        limit, retrieval = self.engine.spec.max_positions, self.method.retrieval
        if rows <= limit:
            return
        remedy = f"lower prompt.budget={self.budget} (with memory/retrieval=embedding)"
        if retrieval.capabilities.latent:
            remedy = f"lower memory.retrieval.top_k={retrieval.top_k} ({new} of the tokens are this turn's own)"
        raise CapacityError(f"a prompt of {rows} tokens is longer than the model's {limit} positions; {remedy}")

    def _room_behind(self, prefill: Prefill, needed: int) -> int:
        """Positions that the model has behind the prompt's. Raises CapacityError for fewer than ``needed``."""
        latent = self.method.retrieval.capabilities.latent  # then coupled rows lie anywhere, as far as they are told
        rows = prefill.cache.length if latent else prefill.cache.next_position
        limit = self.engine.spec.max_positions
        if limit - rows < needed:
            raise CapacityError(
                f"{needed} more behind a prompt of {rows} do not fit into the model's {limit} positions; lower "
                f"prompt.budget={self.budget}"
            )
        return limit - rows


def _fitting(units: Sequence[Unit], room: int) -> list[Unit]:
    """The first of them, ``room`` tokens at most: there will be no prompt that goes on behind."""
    ends = accumulate(len(unit.token_ids) for unit in units)
    return [unit for unit, end in zip(units, ends, strict=True) if end <= room]
