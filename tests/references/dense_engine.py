"""Dense engine: the `Engine` Protocol over the dense reference model, slow and without optional capabilities."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch.nn import functional

from keep_agent.errors import ConfigError, ModelError
from memory.construction.isolated import join_blocks
from memory.engine.base import EncodeRequest, EngineCapabilities, PrefillResult, Priority, ReadCounts, ScoreResult
from memory.engine.models.load import LoadedModel
from memory.engine.trace import PrefillTrace
from memory.kv_cache.block import KVBlock
from memory.prompt.layout import Layout
from memory.stages import Loading, Recompute
from tests.references.dense import Reference

T = TypeVar("T")


@dataclass
class RowCache:
    """Unrotated keys and values per layer, (kv_heads, rows, head_dim), of rows at ``positions``."""

    layers: list[tuple[torch.Tensor, torch.Tensor]]
    positions: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    logits: torch.Tensor | None = None
    reads: ReadCounts = field(default_factory=ReadCounts)
    raw: bool = False  # whether its unrotated rows may be read and stored

    @property
    def length(self) -> int:
        return self.positions.numel()

    @property
    def next_position(self) -> int:
        return int(self.positions[-1]) + 1 if self.length else 0

    def rewind(self, length: int, logits: torch.Tensor | None) -> None:
        self.layers = [(k[:, :length], v[:, :length]) for k, v in self.layers]
        self.positions, self.logits = self.positions[:length], logits


class DenseEngine:
    """One Qwen2, Qwen3 or Llama model in plain matrices; every call runs in the caller's thread."""

    capabilities = EngineCapabilities(*[False] * 4)

    def __init__(self, model: LoadedModel) -> None:
        self.info, self.device = model.spec, torch.device("cpu")
        self._reference, self._closed = Reference(model.module), False

    @property
    def model_key(self) -> str:
        return self.info.model_key

    def encode(
        self, units: Sequence[EncodeRequest], identities: Sequence[str] = (), priority: Priority = Priority.PLAN
    ) -> list[KVBlock]:
        if identities and len(identities) != len(units):
            raise ConfigError(f"{len(units)} units but {len(identities)} identities")
        blocks = []
        for name, (context, ids) in zip(identities or [""] * len(units), units, strict=True):
            cache = self._cache(context)
            self._forward(cache, ids)
            blocks.append(self._block(cache, slice(cache.length - len(ids), None), name))
        return blocks

    def prefill(
        self, layout: Layout, recompute: Recompute, loading: Loading, context_block: KVBlock | None = None,
        keep_raw: bool = False, layer_rows: object = None, unit_context: KVBlock | None = None,
    ) -> PrefillResult:  # fmt: skip
        active, cache, encoded = recompute.first(layout, self.info.layers), self._cache(None, keep_raw), {}
        cache.layers = [tuple(x.new_zeros(x.shape[0], layout.rows, x.shape[2]) for x in pair) for pair in cache.layers]
        for p in layout.placements:
            if p.fused and p.fused not in encoded:
                context = join_blocks([block for block in (unit_context, p.prefix_block) if block is not None])
                (encoded[p.fused],) = self.encode([(context, p.unit.token_ids)], [p.fused])
        places = [(0, context_block), *((p.start, p.block or encoded.get(p.fused)) for p in layout.placements)]
        for start, block in places:
            for layer, (k, v) in enumerate(cache.layers) if block is not None else ():
                k[:, start : start + block.tokens] = block.k[layer]
                v[:, start : start + block.tokens] = block.v[layer]
        logits = self._layers(cache, layout.token_ids[active].tolist(), active, layout.positions)
        return PrefillResult(logits, cache, self._trace(layout.rows, active.numel()), tuple(encoded.values()))

    def extend(self, cache: RowCache, token_ids: Sequence[int] | torch.Tensor, chunking: Any = None) -> PrefillResult:
        ids = torch.as_tensor(token_ids).tolist()
        return PrefillResult(self._forward(cache, ids), cache, self._trace(cache.length, len(ids)))

    def append(self, cache: RowCache, token_ids: Sequence[int]) -> torch.Tensor:
        return self.extend(cache, token_ids).logits

    def score(
        self, cache: RowCache, candidates: Sequence[Sequence[int]], reduce: str = "sum", best: int | None = None
    ) -> ScoreResult:
        scores, length, logits = [], cache.length, cache.logits
        for ids in candidates:
            total = torch.zeros(())
            for token in ids:
                total = total + cache.logits.log_softmax(-1)[0, token]
                self._forward(cache, [token])
            cache.rewind(length, logits)
            scores.append(total / (1 if reduce == "sum" else len(ids)))
        return ScoreResult(torch.stack(scores), sum(map(len, candidates)))

    def generate(
        self, cache: RowCache, first_logits: torch.Tensor, max_new_tokens: int, stop_ids: Collection[int] = ()
    ) -> list[int]:
        ids: list[int] = []
        while len(ids) < max_new_tokens and (token := int(cache.logits.argmax())) not in stop_ids:
            ids.append(token)
            self._forward(cache, [token])
        return ids

    def harvest(self, cache: RowCache, rows: Sequence[int] | torch.Tensor, identity: str = "") -> KVBlock:
        if not cache.raw:
            raise ModelError("rows of this cache cannot be copied to blocks: run the prefill with keep_raw=True.")
        return self._block(cache, torch.as_tensor(rows), identity)

    def query_states(
        self, context: KVBlock | None, token_ids: Sequence[int], layers: Sequence[int]
    ) -> list[torch.Tensor]:
        cache, states = self._cache(context), {}
        self._forward(cache, token_ids, states)
        return [states[layer] for layer in layers]

    def compact(self, *_: object) -> Any:
        raise ConfigError("this engine has no session caches and no quantized caches")

    cache_provider = new_cache = restore_cache = compact

    def run(self, work: Callable[[], T]) -> T:
        return self.submit(work).result()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        if self._closed:
            raise ModelError("this engine is closed; build a new one.")
        future: Future[T] = Future()
        future.set_result(work())
        return future

    in_background = submit

    def close(self) -> None:
        self._closed = True

    def _trace(self, rows: int, computed: int) -> PrefillTrace:
        trace = PrefillTrace(rows, [computed] * self.info.layers, [0] * self.info.layers)
        trace.timings = {"load": 0.0, "prefill": 0.0}
        return trace

    def _cache(self, context: KVBlock | None, raw: bool = False) -> RowCache:
        if context is None:
            empty = torch.empty(self.info.kv_heads, 0, self.info.head_dim, dtype=self.info.dtype)
            return RowCache([(empty, empty)] * self.info.layers, raw=raw)
        layers = [(context.k[layer], context.v[layer]) for layer in range(self.info.layers)]
        return RowCache(layers, torch.arange(context.tokens), raw=raw)

    def _block(self, cache: RowCache, rows: slice | torch.Tensor, identity: str) -> KVBlock:
        k, v = (torch.stack([layer[side][:, rows] for layer in cache.layers]) for side in (0, 1))
        return KVBlock(identity, k, v)

    def _forward(
        self, cache: RowCache, ids: Sequence[int], states: dict[int, torch.Tensor] | None = None
    ) -> torch.Tensor:
        """Add the rows of ``ids`` to ``cache``; return the logits (1, vocab) behind them."""
        before, count = cache.length, len(ids)
        positions = torch.cat([cache.positions, torch.arange(count) + cache.next_position])
        cache.layers = [tuple(functional.pad(x, (0, 0, 0, count)) for x in pair) for pair in cache.layers]
        return self._layers(cache, ids, torch.arange(before, before + count), positions, states)

    @torch.no_grad()
    def _layers(
        self, cache: RowCache, ids: Sequence[int], rows: torch.Tensor, positions: torch.Tensor,
        states: dict[int, torch.Tensor] | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Compute ``rows`` of ``cache``, which then has rows at ``positions``; return the logits of the last one."""
        model, module = self._reference, self._reference.module
        hidden = module.model.embed_tokens.weight[list(ids)]
        for layer, (k, v) in enumerate(cache.layers):
            q, k_new, v_new = model.project(layer, hidden)
            if states is not None:
                states[layer] = q
            k[:, rows], v[:, rows] = k_new, v_new
            weights = model.attend(model.rotate(q, positions[rows]), model.rotate(k, positions), rows.tolist(), True)
            hidden = model.finish(layer, hidden, weights, v)
        cache.reads.add(positions.numel(), positions.numel())
        cache.positions = positions
        cache.logits = model.norm(module.model.norm.weight, hidden[-1:]) @ module.lm_head.weight.T
        return cache.logits
