"""Transformers engine: a Hugging Face model, run layer by layer in one worker thread."""

from __future__ import annotations

import atexit
import copy
import itertools
import queue
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import TracebackType
from typing import Any, TypeVar
from weakref import WeakSet

import torch
from transformers import PreTrainedModel

from keep_agent.errors import ConfigError, ModelError
from memory.engine.base import (
    CacheProvider,
    ChunkSchedule,
    EncodeRequest,
    EngineCapabilities,
    PrefillResult,
    Priority,
    ScoreResult,
)
from memory.engine.cpu.allocator import keep_freed_memory, trim_heap
from memory.engine.models.load import LoadedModel
from memory.engine.models.model_spec import ModelSpec
from memory.engine.transfer.executor import Transport
from memory.engine.transfer.link import Throttle, choose_device
from memory.engine.transformers.append import ChunkedPrefill, generate
from memory.engine.transformers.cache_providers import PagedCacheProvider, QuantizedCacheProvider, compact
from memory.engine.transformers.encode import encode, query_states, to_host
from memory.engine.transformers.keep_interfaces import KeepInterfaces, ManualLoading
from memory.engine.transformers.prefill import LayerwisePrefill
from memory.engine.transformers.score import Scorer
from memory.files.block_file import BlockFile
from memory.kv_cache.block import KVBlock
from memory.kv_cache.dense import DenseCache, WorkingCache
from memory.kv_cache.paged import PagedCache
from memory.kv_cache.quantization import PackFormat
from memory.kv_cache.quantized import QuantizedCache
from memory.kv_cache.quantized_file import restore
from memory.prompt.layout import Layout
from memory.stages import Loading, PerLayerRows, Recompute

T = TypeVar("T")
TIDY_INTERVAL = 256  # number of jobs between two calls of `tidy`; about fifty steps of an agent


@dataclass(order=True)
class _Job:
    priority: Priority
    number: int
    work: Callable[[], Any] | None = field(compare=False)
    result: Future = field(compare=False)
    threads: int = field(compare=False, default_factory=torch.get_num_threads)  # torch's thread count in the caller

    def run(self) -> bool:
        """Run the work, and forget it before its result is set; returns False if the work was cancelled."""
        work, self.work = self.work, None
        if work is None or not self.result.set_running_or_notify_cancel():
            return False
        if torch.get_num_threads() != self.threads:  # torch keeps this number per thread
            torch.set_num_threads(self.threads)
        try:
            with torch.inference_mode():
                result = work()
        except BaseException as error:
            del work
            self.result.set_exception(error)
        else:
            del work
            self.result.set_result(result)
        return True


class Worker:
    """Thread that runs jobs one at a time under ``torch.inference_mode``, by priority, then in order of arrival.

    :param tidy: called after every `TIDY_INTERVAL` jobs, when the result of the last one is set
    :param device: the model's device; a GPU becomes the thread's current device
    """

    def __init__(
        self, name: str = "engine", tidy: Callable[[], None] | None = None, device: torch.device | None = None
    ) -> None:
        self._tidy, self._device = tidy, device
        self._jobs: queue.PriorityQueue[_Job] = queue.PriorityQueue()
        self._numbers = itertools.count()
        self._closed, self._lock = False, threading.Lock()  # the lock keeps jobs from being queued after closing
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()
        _WORKERS.add(self)

    def submit(self, work: Callable[[], T], priority: Priority = Priority.PLAN) -> Future[T]:
        """Queue ``work``. Raises ModelError after ``close``."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise ModelError("this engine is closed; build a new one.")
            self._jobs.put(_Job(priority, next(self._numbers), work, future))
        return future

    def call(self, work: Callable[[], T], priority: Priority = Priority.PLAN) -> T:
        """Run ``work`` and return its result; on the worker's own thread it runs at once.

        Afterwards the worker's thread keeps no reference to the work, its result or its error.
        """
        if threading.current_thread() is self._thread:
            return work()
        ends: list[tuple[T, None] | tuple[None, BaseException]] = []  # a future would keep a reference to the result

        def run() -> None:
            try:
                ends.append((work(), None))
            except BaseException as error:
                ends.append((None, error))

        self.submit(run, priority).result()
        result, error = ends.pop()
        if error is None:
            return result
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame

    def close(self) -> None:
        """Finish the queued jobs, then stop. May be called twice."""
        self._end(Priority.CLOSE)

    def _end(self, priority: Priority) -> None:
        with self._lock:
            if not self._closed or priority == Priority.EXIT:
                self._closed = True
                self._jobs.put(_Job(priority, next(self._numbers), None, Future()))
        self._thread.join()  # also in a second call: callers free resources of jobs after this

    def _serve(self) -> None:
        choose_device(self._device)
        while (job := self._jobs.get()).work is not None:
            ran, due = job.run(), job.number % TIDY_INTERVAL == TIDY_INTERVAL - 1
            del job  # drop the reference to the work, and so to the model, before tidying or waiting
            if ran and due and self._tidy is not None:
                self._tidy()


_WORKERS: WeakSet[Worker] = WeakSet()


@atexit.register
def _close_workers() -> None:
    """Wait for the running job, not for queued ones, if the process ends with an open engine.

    A thread that returns from torch after the interpreter has ended aborts the process.
    """
    for worker in tuple(_WORKERS):
        worker._end(Priority.EXIT)


class TransformersEngine:
    """`Engine` of one model with one worker, for any number of threads; close it, or use it as a context manager."""

    capabilities = EngineCapabilities()

    def __init__(
        self,
        model: LoadedModel,
        transport: str = "auto",
        throttle: Throttle | None = None,
        importance: str = "before",
        chunk: float | None = None,
    ) -> None:
        """:param transport: how blocks are transferred: inline | thread | stream | auto, see `Transport.of`
        :param throttle: simulates the link of another machine
        :param importance: when the next layer's rows are chosen: ``before`` the current layer's MLP, which then skips
            dropped rows, or ``beside`` this MLP, in a parallel thread (KEEP has three workers)
        :param chunk: approximate bytes of a transfer job for a layer after the next one (the next layer's rows move in
            one job); None: `link.CHUNK`, or the throttle's ``chunk`` if there is one
        """
        on_cpu = model.decoder.device.type == "cpu"
        if on_cpu:
            keep_freed_memory()  # before the worker's thread starts, which else gets a heap of its own
        self.model, self.decoder = model, model.decoder
        self.info: ModelSpec = model.spec
        self.device: torch.device = model.decoder.device
        self.model_key = self.info.model_key
        self._worker = Worker(tidy=trim_heap if on_cpu else None, device=model.decoder.device)
        self._scorer = Scorer(model.decoder)
        self._transport = Transport.of(transport, model.decoder.device, throttle, importance, chunk)

    def encode(
        self, units: Sequence[EncodeRequest], identities: Sequence[str] = (), priority: Priority = Priority.PLAN
    ) -> list[KVBlock]:
        """Encode each memory unit into a block. Units with the same context are computed together, many per forward."""
        return self._worker.call(partial(self._encode, units, identities), priority)

    def prefill(
        self,
        layout: Layout,
        recompute: Recompute,
        loading: Loading,
        context_block: KVBlock | None = None,
        keep_raw: bool = False,
        layer_rows: PerLayerRows | None = None,
        unit_context: KVBlock | None = None,
    ) -> PrefillResult:
        parts = recompute, loading, self._transport, context_block, keep_raw, layer_rows, unit_context
        return self._worker.call(lambda: LayerwisePrefill(self.decoder, layout, *parts).run())

    def steps(self, layout: Layout, recompute: Recompute, context_block: KVBlock | None = None) -> KeepInterfaces:
        """Make KEEP's ``load_memory``, ``prefill_layer`` and ``importance_evaluation`` for stepwise use."""
        parts = layout, recompute, ManualLoading(), self._transport, context_block
        prefill = self._worker.call(lambda: LayerwisePrefill(self.decoder, *parts))
        return KeepInterfaces(prefill, self._worker.call)

    def score(
        self, cache: WorkingCache, candidates: Sequence[Sequence[int]], reduce: str = "sum", best: int | None = None
    ) -> ScoreResult:
        """Score candidates in one forward over their trie; with ``best``, a CPU may take a few small forwards."""
        return self._worker.call(partial(self._scorer.score, cache, candidates, reduce, best))

    def generate(
        self, cache: WorkingCache, first_logits: torch.Tensor, max_new_tokens: int, stop_ids: Collection[int] = ()
    ) -> list[int]:
        stops = frozenset(stop_ids)
        return self._worker.call(partial(generate, self.decoder, cache, first_logits, max_new_tokens, stops))

    def append(self, cache: WorkingCache, token_ids: Sequence[int]) -> torch.Tensor:
        return self.extend(cache, token_ids).logits

    def extend(
        self, cache: WorkingCache, token_ids: Sequence[int] | torch.Tensor, chunking: ChunkSchedule | None = None
    ) -> PrefillResult:
        ids = torch.as_tensor(token_ids, dtype=torch.long, device=self.decoder.device)
        return self._worker.call(lambda: ChunkedPrefill(self.decoder, cache, ids, chunking).run())

    def cache_provider(
        self, format: PackFormat | None = None, block_size: int = 1, prefix_tokens: int = 0
    ) -> CacheProvider:
        """Make a provider of session caches, which are quantized if there is a ``format``, else paged."""
        if format is None:
            return PagedCacheProvider(self.info, self.device, block_size, prefix_tokens)
        return QuantizedCacheProvider(self.info, self.device, format)

    def new_cache(self, format: PackFormat) -> QuantizedCache:
        return QuantizedCache(self.info, format, self.device)

    def restore_cache(self, file: BlockFile) -> QuantizedCache:
        return restore(file, self.info, self.device)

    def compact(self, cache: PagedCache) -> None:
        self._worker.call(partial(compact, self.decoder, cache))

    def harvest(self, cache: DenseCache, rows: Sequence[int] | torch.Tensor, identity: str = "") -> KVBlock:
        index = torch.as_tensor(rows, dtype=torch.long, device=self.decoder.device)
        k, v = self._worker.call(partial(cache.harvest, index))
        return KVBlock(identity, to_host(k), to_host(v))

    def query_states(
        self, context: KVBlock | None, token_ids: Sequence[int], layers: Sequence[int]
    ) -> list[torch.Tensor]:
        """Compute query states at ``layers`` (ascending) in a pass that ends at the last of them."""
        return self._worker.call(partial(query_states, self.decoder, context, token_ids, layers))

    def run(self, work: Callable[[], T]) -> T:
        return self._worker.call(work)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        return self._worker.submit(work)

    def in_background(self, work: Callable[[], T]) -> Future[T]:
        return self._worker.submit(work, Priority.BACKGROUND)

    def forward_plain(
        self,
        ids: torch.Tensor,
        attention_mask: torch.Tensor | dict[str, torch.Tensor] | None = None,
        position_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return logits (rows, vocab) of transformers' own forward on the same weights, as a reference."""
        rows = {"input_ids": torch.atleast_2d(ids).to(self.decoder.device), "attention_mask": attention_mask}
        return self._worker.call(lambda: self.plain(**rows, position_ids=position_ids, use_cache=False).logits[0])

    @cached_property
    def plain(self) -> PreTrainedModel:
        """Return a copy of the model with transformers' SDPA attention (eager attention for models with sinks).

        The copy shares all parameters of the model except prepacked ones, which are copied.
        """
        module = self.model.module
        shared = {id(t): t for t in (*module.parameters(), *module.buffers())}
        twin = copy.deepcopy(module, shared)
        twin.set_attn_implementation("eager" if self.info.sinks else "sdpa")
        return twin

    def close(self) -> None:
        """Stop the worker after the queued jobs."""
        self._worker.close()
        self._transport.close()

    def __enter__(self) -> TransformersEngine:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _encode(self, units: Sequence[EncodeRequest], identities: Sequence[str]) -> list[KVBlock]:
        if identities and len(identities) != len(units):
            raise ConfigError(f"{len(units)} units but {len(identities)} identities; give one per unit, or none.")
        names = identities or [""] * len(units)
        contexts = {id(context): context for context, _ in units}
        blocks: list[KVBlock | None] = [None] * len(units)
        for context in contexts.values():
            numbers = [i for i, (context_of_unit, _) in enumerate(units) if context_of_unit is context]
            pairs = encode(self.decoder, [units[i][1] for i in numbers], context)
            for i, (k, v) in zip(numbers, pairs, strict=True):
                blocks[i] = KVBlock(names[i], to_host(k), to_host(v))
        return [block for block in blocks if block is not None]
