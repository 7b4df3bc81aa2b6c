"""Prefill a prompt layer by layer with ever fewer active rows; everything else is loaded from blocks."""

from __future__ import annotations

import time
from concurrent.futures import Executor
from dataclasses import dataclass

import torch

from keep_agent.errors import ConfigError
from memory.block import KVBlock
from memory.engine.attention import Pass
from memory.engine.cache import HEADROOM, DenseCache, as_rows
from memory.engine.decoder import Decoder
from memory.engine.encode import place_block
from memory.engine.loader import Loader, Mover
from memory.engine.masks import causal_plan
from memory.engine.probe import LayerProbe, SegmentTable
from memory.engine.trace import ComputeInterval, PrefillResult, PrefillTrace
from memory.stages import Layout, Loading, Recompute

KEPT_WEIGHTS = 1 << 28  # bytes of one layer's attention weights up to which they are kept for the probe


@dataclass(frozen=True, slots=True)
class Transport:
    """Where transfers run: beside the computation in a thread or on a stream, or inline."""

    executor: Executor | None = None
    stream: torch.cuda.Stream | None = None


class Prefill:
    """One prefill. ``run`` may be called once."""

    def __init__(
        self,
        decoder: Decoder,
        layout: Layout,
        recompute: Recompute,
        loading: Loading,
        transport: Transport,
        context: KVBlock | None = None,
        keep_raw: bool = False,
    ) -> None:
        check_layout(layout, context)
        self.decoder, self.layout, self.recompute, self.loading = decoder, layout, recompute, loading
        self.spec, self.table = decoder.spec, SegmentTable(layout)
        self.angles = decoder.rope.at(layout.positions, int(layout.positions[-1]) + 1)
        self.cache = DenseCache(self.spec, layout.rows + HEADROOM, decoder.device, raw=keep_raw)
        mover = Mover(layout, self.cache, decoder.rope, self.angles)
        self.loader = Loader(mover, self.spec.layers, transport.executor, transport.stream)
        self.context = context
        self.trace = PrefillTrace(layout.rows, layout.query - layout.context)
        self.last_row_layer = torch.full((layout.rows,), -1, dtype=torch.long, device=decoder.device)
        self.keep_raw = keep_raw

    def run(self) -> PrefillResult:
        """All layers, then the head on the last row."""
        started = time.perf_counter()
        if self.context is not None:
            place_block(self.decoder, self.cache, self.context, 0)
            self.loader.cover(slice(0, self.layout.context))
        active = self._checked(self.recompute.first(self.layout, self.spec.layers))
        hidden = self.decoder.embed(self.layout.token_ids[active])
        state = self._activate(active)
        for layer in range(self.spec.layers):
            entered, hidden = hidden, self._layer(layer, active, hidden, state)
            if layer + 1 == self.spec.layers:
                break
            narrowed = self.recompute.narrow(layer, active, self._probe(layer, active, state, entered, hidden))
            if narrowed is active or torch.equal(narrowed, active):
                continue
            hidden = hidden[:, self._index(narrowed, active)]
            active = self._checked(narrowed)
            state = self._activate(active)
        return self._result(hidden, active, started)

    def _layer(self, layer: int, active: torch.Tensor, hidden: torch.Tensor, state: Pass) -> torch.Tensor:
        """Start what may be loaded, wait for what this layer needs, compute it."""
        self.loader.submit(self.loading.schedule(self.layout, layer, active, self.spec.layers))
        self.loader.wait(layer, self.inactive)
        self.trace.active_rows.append(active.numel())
        self.trace.recomputed_rows.append(self.recomputed)
        start = time.perf_counter()
        hidden = self.decoder.layer(layer, hidden, state)
        self.trace.computes.append(ComputeInterval(layer, start, time.perf_counter()))
        return hidden

    def _activate(self, active: torch.Tensor) -> Pass:
        """The state all layers with these active rows share."""
        layout, rows = self.layout, as_rows(active)
        memory = (active >= layout.context) & (active < layout.query) & ~layout.fresh[active]
        self.recomputed = int(memory.sum())
        self.inactive = None
        if active.numel() < layout.rows:
            inactive = torch.ones(layout.rows, dtype=torch.bool)
            inactive[active.cpu()] = False
            self.inactive = inactive.numpy()
        angles = {key: (cos[:, rows], sin[:, rows]) for key, (cos, sin) in self.angles.items()}
        plan = causal_plan(active, layout.positions, self.spec.dtype)
        size = self.spec.heads * active.numel() * layout.rows * self.spec.dtype.itemsize
        return Pass(
            self.cache,
            rows,
            layout.rows,
            angles,
            plan,
            self.spec.rope_keys,
            bare=self.keep_raw,
            keep_weights=size <= KEPT_WEIGHTS,
        )

    def _probe(
        self, layer: int, active: torch.Tensor, state: Pass, entered: torch.Tensor, left: torch.Tensor
    ) -> LayerProbe:
        return LayerProbe(
            layer, self.decoder, self.layout, self.table, self.cache, self.trace, active, state.attended, entered, left
        )

    def _checked(self, active: torch.Tensor) -> torch.Tensor:
        """Fresh rows must be active: nothing else can give them keys."""
        if int(self.layout.fresh[active].sum()) != self.fresh_rows:
            raise ConfigError(f"{type(self.recompute).__name__} dropped fresh rows; they stay active at every layer.")
        return active

    @property
    def fresh_rows(self) -> int:
        return int(self.layout.fresh.sum())

    def _index(self, narrowed: torch.Tensor, active: torch.Tensor) -> torch.Tensor:
        """Places of ``narrowed`` within ``active``; also notes the last layer of the rows dropped here."""
        index = torch.searchsorted(active, narrowed).clamp(max=active.numel() - 1)
        if not torch.equal(active[index], narrowed):
            raise ConfigError(
                f"{type(self.recompute).__name__} revived rows that were not active; a row without a "
                "hidden state cannot be recomputed."
            )
        self._note_last(active)
        return index

    def _note_last(self, active: torch.Tensor) -> None:
        """Rows active until now were computed in the latest layer."""
        self.last_row_layer[active] = len(self.trace.active_rows) - 1

    def _result(self, hidden: torch.Tensor, active: torch.Tensor, started: float) -> PrefillResult:
        logits = self.decoder.head(hidden[:, -1]).to(torch.promote_types(hidden.dtype, torch.float32))
        self.loader.finish()
        self._note_last(active)
        self.cache.extend(self.layout.positions, logits)
        trace, waited = self.trace, self.loader.waited
        trace.last_layer = self._last_layers()
        trace.loads = self.loader.intervals
        trace.timings = {"load": waited, "prefill": time.perf_counter() - started - waited}
        return PrefillResult(logits, self.cache, trace)

    def _last_layers(self) -> tuple[int, ...]:
        if not self.table.count:
            return ()
        owner = self.layout.segment_of
        member = owner >= 0
        last = torch.full((self.table.count,), -1, dtype=torch.long, device=owner.device)
        last.scatter_reduce_(0, owner[member], self.last_row_layer[member], "amax")
        return tuple(last.tolist())


def check_layout(layout: Layout, context: KVBlock | None) -> None:
    """Refuse prompts whose rows or context do not add up.

    :raises ConfigError: no query, positions that do not increase, or a context block of another length.
    """
    if not layout.context <= layout.query < layout.rows:
        raise ConfigError(
            f"a prompt of {layout.rows} rows needs a query behind its {layout.context} context rows, "
            f"but the query starts at row {layout.query}."
        )
    if not bool((layout.positions[1:] > layout.positions[:-1]).all()):
        raise ConfigError("positions of a prompt must increase from row to row.")
    if not bool(layout.fresh[layout.query :].all()):
        raise ConfigError("query rows must be fresh.")
    if context is not None and context.tokens != layout.context:
        raise ConfigError(
            f"the context block holds {context.tokens} tokens, but the prompt has {layout.context} context rows."
        )
    if context is None and layout.context and not bool(layout.fresh[: layout.context].all()):
        raise ConfigError(f"the prompt's {layout.context} context rows have no block: give one, or mark them fresh.")
