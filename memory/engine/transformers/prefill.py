"""Layer-by-layer prefill: a layer computes its active rows, a subset of the previous layer's, and loads other rows.

Up to three workers (KEEP, arXiv 2602.23592, section 4.3) compute the layers, choose the next layer's rows, and load
the other rows. A layer starts when its active rows are chosen and the stored keys and values of the others are
loaded. Most stages choose the next layer's rows after the attention; those that need only its mass choose before it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from keep_agent.errors import ConfigError
from memory.engine.attention.function import AttentionHook, PromptPass, at_rows
from memory.engine.attention.kernels import LayerAttention, causal_plan
from memory.engine.base import PrefillResult
from memory.engine.trace import ComputeInterval, PrefillTrace
from memory.engine.transfer.executor import KVTransfer, TransferExecutor, Transport
from memory.engine.transfer.per_layer_retrieval import PerLayerRetrieval
from memory.engine.transformers.decoder import Decoder, check_finite, check_ids
from memory.engine.transformers.encode import FusedEncoding, write_keys
from memory.engine.transformers.probe import (
    AwaitedOutput,
    DeferredOutput,
    LayerOutput,
    LayerProbe,
    MissingOutput,
    ProbedPrompt,
)
from memory.kv_cache.block import KVBlock
from memory.kv_cache.dense import HEADROOM, DenseCache
from memory.prompt.layout import Layout
from memory.stages import Loading, PerLayerRows, Recompute

KEPT_WEIGHTS = 1 << 28  # maximum bytes of a layer's attention weights kept for the recompute stage


@dataclass(frozen=True, slots=True)
class ActiveRows:
    """Rows computed at a layer, and the state that all layers with the same rows share."""

    rows: torch.Tensor  # sorted
    recomputed: int  # number of memory rows among them that have a block
    inactive: NDArray[np.bool_] | None  # (prompt rows,) bool; None if every row is active
    weights_fit: bool  # whether a layer's attention weights fit into `KEPT_WEIGHTS`
    state: PromptPass


class RecordingHook:
    """Attention hook of a layer whose active rows all attend; keeps the attention for the probe."""

    def __init__(self, prefill: LayerwisePrefill, keeps_weights: bool) -> None:
        self._prefill, self._keeps_weights = prefill, keeps_weights
        self.attention: LayerAttention | None = None

    def on_queries(self, layer: int, query: torch.Tensor) -> None:
        self._prefill.fill_layer_rows(layer, query)

    def attend(self, attention: LayerAttention) -> torch.Tensor:
        self.attention = attention
        attention.keeps_weights = self._keeps_weights
        return attention.output()


class RowChoiceHook(RecordingHook):
    """Attention hook that chooses the next layer's rows before the layer attends, so that dropped rows never attend.

    ``index`` has the indices of the active rows that stay, None if all stay; ``end`` is the time after the choice.
    """

    def __init__(self, prefill: LayerwisePrefill, layer_input: torch.Tensor, began: float, keeps_weights: bool) -> None:
        super().__init__(prefill, keeps_weights)
        self._layer_input, self._began, self.end = layer_input, began, began
        self.index: torch.Tensor | None = None

    def attend(self, attention: LayerAttention) -> torch.Tensor:
        prefill = self._prefill
        attention.keeps_weights = self._keeps_weights
        prefill.record_time(attention.layer, self._began, "attention")
        output = MissingOutput(type(prefill.recompute).__name__)
        self.index = prefill.choose(prefill.probe(attention, self._layer_input, output))
        self.end = time.perf_counter()
        if self.index is None:
            return attention.output()
        return attention.output_of(self.index, prefill.active.state.plan.blocks(attention.params.window))


class LayerwisePrefill:
    """Prefill of one prompt by ``run``, or step by step: ``embed``, ``compute`` and ``choose`` per layer, ``finish``.

    On CUDA the trace's intervals measure the time to issue work; only the total time includes the work's execution.
    """

    def __init__(
        self,
        decoder: Decoder,
        layout: Layout,
        recompute: Recompute,
        loading: Loading,
        transport: Transport,
        context: KVBlock | None = None,
        keep_raw: bool = False,
        layer_rows: PerLayerRows | None = None,
        unit_context: KVBlock | None = None,
    ) -> None:
        self._started = time.perf_counter()
        check_layout(layout, context)
        layout = on_device(layout, decoder.device)
        self.decoder, self.layout, self.recompute, self.loading = decoder, layout, recompute, loading
        self.trace = PrefillTrace(layout.rows)
        self._layers, self._fresh_rows, device = decoder.spec.layers, int(layout.fresh.sum()), decoder.device
        # whether to keep attention weights for the stage; False once the stage has dropped rows without reading weights
        self._keeps_weights = recompute.capabilities.repairs
        self._last_layer = torch.full((layout.rows,), -1, dtype=torch.long, device=device)
        first = recompute.first(layout, self._layers)
        fused = [placement for placement in layout.placements if placement.fused]
        present = [slice(placement.start, placement.stop) for placement in fused]
        present += [] if context is None else [slice(0, layout.context)]
        present += [] if layer_rows is None else [layer_rows.rows]
        check_ids(layout.token_ids, decoder.spec.vocab)
        self._angles = decoder.rope.angles_at(layout.positions, int(layout.positions[-1]) + 1)
        self.cache = DenseCache(decoder.spec, layout.rows + HEADROOM, device, raw=keep_raw or layer_rows is not None)
        self._fused = FusedEncoding(decoder, fused, self.cache, self._angles, unit_context) if fused else None
        if context is not None:
            decoder.rope.place_block(self.cache, context, 0)
        self._visible = self.cache.end_at(layout.rows)
        self._probed = ProbedPrompt(decoder, layout, self.cache, self.trace, self._fused)
        mover = KVTransfer(layout, self.cache, decoder.rope, self._angles, transport.staging)
        self.loader, self._chooser = TransferExecutor(mover, self._layers, transport, present), transport.chooser
        self._retrieval = None if layer_rows is None else PerLayerRetrieval(layer_rows, self.loader, self._layers)
        self.active = self._activate(first)

    def run(self) -> PrefillResult:
        """Compute all layers, then the head on the last row."""
        try:
            hidden = self.embed()
            for layer in range(self._layers - 1):
                hidden = self._pass(layer, hidden)
            return self.finish(self._last(hidden))
        except BaseException:
            self.loader.cancel()
            raise

    def embed(self) -> torch.Tensor:
        """Return hidden states (1, active rows, hidden) that enter layer 0."""
        return self.decoder.embed(self.layout.token_ids[self.active.rows])

    def compute(self, layer: int, hidden: torch.Tensor) -> tuple[torch.Tensor, LayerAttention]:
        """Compute a whole layer for its active rows, once its other rows are loaded; returns output and attention."""
        mixed, attention = self._attend(layer, hidden)
        return self.feed(layer, mixed), attention

    def probe(self, attention: LayerAttention, layer_input: torch.Tensor, output: LayerOutput) -> LayerProbe:
        """Make the probe of a layer; ``layer_input`` are the hidden states (1, active rows, hidden) before it."""
        return LayerProbe(self._probed, attention.layer, self.active.rows, attention, layer_input, output)

    def choose(self, probe: LayerProbe) -> torch.Tensor | None:
        """Let the recompute stage choose the next layer's active rows.

        If the loading stage overlaps computing, transfers of the next layer's other rows start. Returns the indices,
        into this layer's active rows, of the rows that stay; None if all stay.
        """
        began, before = time.perf_counter(), self.active.rows
        rows, index = self.recompute.narrow(probe.layer, before, probe), None
        self._keeps_weights &= probe.used_mass or rows is before
        if rows is not before and not torch.equal(rows, before):
            index = torch.searchsorted(before, rows).clamp(max=before.numel() - 1)
            if not torch.equal(before[index], rows):
                raise ConfigError(
                    f"{type(self.recompute).__name__} chose rows that were not active, which have no hidden state; "
                    "choose among the active rows."
                )
            self._last_layer[before] = probe.layer
            self.active = self._activate(rows)
        self.record_time(probe.layer, began, "importance")
        if self.loading.overlaps:
            self._load(probe.layer + 1)
        return index

    def fill_layer_rows(self, layer: int, query: torch.Tensor) -> None:
        """Fill the rows of `PerLayerRows` with the blocks that the queries (1, heads, active rows, head_dim) choose."""
        if self._retrieval is None:
            return
        (blocks, (k, v)), rows = self._retrieval.take(layer, query[0]), self._retrieval.layer_rows.rows
        self.decoder.rope.place(self.cache, layer, rows, at_rows(self._angles, rows), k, v)
        self.trace.chosen_blocks.append(blocks)

    def feed(self, layer: int, mixed: torch.Tensor, began: float | None = None) -> torch.Tensor:
        """Compute the MLP half of a layer."""
        began = time.perf_counter() if began is None else began
        feed = self.decoder.feed if self._fused is None else self._fused.feed
        hidden = feed(layer, mixed)
        self.record_time(layer, began, "mlp")
        return hidden

    def record_time(self, layer: int, began: float, kind: str) -> None:
        self.trace.computes.append(ComputeInterval(layer, began, time.perf_counter(), kind))

    def _pass(self, layer: int, hidden: torch.Tensor) -> torch.Tensor:
        """Compute one layer; returns the hidden states of the rows that are active at the next layer."""
        if self._chooser is not None:
            return self._choose_in_parallel(layer, hidden)
        if self.recompute.capabilities.by_mass:
            return self._choose_before_attention(layer, hidden)
        mixed, attention = self._attend(layer, hidden)
        output = DeferredOutput(partial(self.feed, layer, mixed))
        index = self.choose(self.probe(attention, hidden, output))
        if output.hidden is None:  # dropped rows need no MLP
            return self.feed(layer, mixed if index is None else mixed[:, index])
        return output.hidden if index is None else output.hidden[:, index]

    def _choose_in_parallel(self, layer: int, hidden: torch.Tensor) -> torch.Tensor:
        """Choose the next layer's rows in a thread while the MLP runs (KEEP's three workers)."""
        mixed, attention = self._attend(layer, hidden)
        output = AwaitedOutput(self._chooser)
        choice = self._chooser.submit(self._choose_in_thread, self.probe(attention, hidden, output))
        try:
            output.future.set_result(self.feed(layer, mixed))
        except BaseException as error:
            output.future.set_exception(error)
        index, output_rows = choice.result(), output.future.result()
        return output_rows if index is None else output_rows[:, index]

    def _choose_in_thread(self, probe: LayerProbe) -> torch.Tensor | None:
        """Run `choose` in a thread, with its own inference mode and stream."""
        with torch.inference_mode(), self._chooser.stream():
            return self.choose(probe)

    def _choose_before_attention(self, layer: int, hidden: torch.Tensor) -> torch.Tensor:
        """Choose the next layer's rows by queries and keys alone, before attention is computed."""
        hook = RowChoiceHook(self, hidden, self._begin(layer), self.active.weights_fit)
        mixed = self._attention_half(layer, hidden, hook)
        return self.feed(layer, mixed if hook.index is None else mixed[:, hook.index], hook.end)

    def _attend(self, layer: int, hidden: torch.Tensor) -> tuple[torch.Tensor, LayerAttention]:
        """Wait for the layer's stored rows, then compute the attention half for its active rows."""
        began = self._begin(layer)
        hook = RecordingHook(self, self._keeps_weights and self.active.weights_fit)
        mixed = self._attention_half(layer, hidden, hook)
        self.record_time(layer, began, "attention")
        return mixed, hook.attention

    def _attention_half(self, layer: int, hidden: torch.Tensor, hook: AttentionHook) -> torch.Tensor:
        attend = self.decoder.attend if self._fused is None else self._fused.attend
        return attend(layer, hidden, self.active.state, hook)

    def _last(self, hidden: torch.Tensor) -> torch.Tensor:
        """Compute the last layer: keys and values of all its active rows, and the output of the last row."""
        layer, active = self._layers - 1, self.active
        if self._retrieval is not None:  # the queries of all rows choose the blocks
            mixed = self._attend(layer, hidden)[0][:, -1:]
        else:
            began = self._begin(layer)
            if self._fused is not None:
                self._fused.close()
            write_keys(self.decoder, layer, hidden, active.state)
            mixed = self.decoder.attend(layer, hidden[:, -1:], self._pass_over(active.rows[-1:]))
            self.record_time(layer, began, "attention")
        began = time.perf_counter()
        hidden = self.decoder.feed(layer, mixed)
        self.record_time(layer, began, "mlp")
        return hidden

    def _begin(self, layer: int) -> float:
        """Wait until all stored rows of the layer are loaded; returns the time at the end of the wait."""
        if layer == 0 or not self.loading.overlaps:
            self._load(layer)
        self.loader.wait(layer, self.active.inactive)
        self.trace.active_rows.append(self.active.rows.numel())
        self.trace.recomputed_rows.append(self.active.recomputed)
        return time.perf_counter()

    def _load(self, layer: int) -> None:
        self.loader.submit(layer, self.loading.schedule(self.layout, layer, self.active.rows, self._layers))

    def finish(self, hidden: torch.Tensor) -> PrefillResult:
        """Return the result of the prefill, which does not write to the cache after this.

        :raises ModelError: the logits are not finite
        """
        logits = self.decoder.head(hidden[:, -1]).to(torch.promote_types(hidden.dtype, torch.float32))
        check_finite(logits, self.decoder.spec.dtype)  # the cache need not be erased: it is discarded
        self._last_layer[self.active.rows] = self._layers - 1
        self.cache.extend(self.layout.positions, logits, self.layout.token_ids)
        self.loader.finish()
        if logits.is_cuda:
            torch.cuda.synchronize(logits.device)
        trace, load_seconds = self.trace, self.loader.wait_seconds
        trace.last_layer = self._segment_layers()
        trace.loads = self.loader.intervals
        trace.timings = {"load": load_seconds, "prefill": time.perf_counter() - self._started - load_seconds}
        return PrefillResult(logits, self.cache, trace, self._fused.blocks() if self._fused is not None else ())

    def _activate(self, rows: torch.Tensor) -> ActiveRows:
        """Prepare a pass over ``rows``. Raises ConfigError unless they include all fresh ones (without stored KV)."""
        layout, spec = self.layout, self.decoder.spec
        fresh = layout.fresh[rows]
        if int(fresh.sum()) != self._fresh_rows:
            raise ConfigError(f"{type(self.recompute).__name__} dropped fresh rows; keep them active in every layer.")
        memory = (rows >= layout.context) & (rows < layout.query) & ~fresh
        inactive = None
        if rows.numel() < layout.rows:
            inactive = np.ones(layout.rows, dtype=bool)
            inactive[rows.cpu().numpy()] = False
        size = spec.heads * rows.numel() * layout.rows * spec.dtype.itemsize
        return ActiveRows(rows, int(memory.sum()), inactive, size <= KEPT_WEIGHTS, self._pass_over(rows))

    def _pass_over(self, rows: torch.Tensor) -> PromptPass:
        first, last = int(rows[0]), int(rows[-1])
        place = slice(first, last + 1) if last - first + 1 == rows.numel() else rows
        angles = {key: (cos[:, place], sin[:, place]) for key, (cos, sin) in self._angles.items()}
        plan, keys = causal_plan(rows, self.layout.positions, self.decoder.spec.dtype), self.decoder.spec.rope_keys
        return PromptPass(self.cache, place, self._visible, angles, plan, keys, self.cache.raw is not None)

    def _segment_layers(self) -> tuple[int, ...]:
        """Return per segment the last layer at which one of its rows was active."""
        owner = self.layout.segment_of
        member = owner >= 0
        last = torch.full((len(self.layout.segments),), -1, dtype=torch.long, device=owner.device)
        last.scatter_reduce_(0, owner[member], self._last_layer[member], "amax")
        return tuple(last.tolist())


def on_device(layout: Layout, device: torch.device) -> Layout:
    """Move the tensors of ``layout`` to ``device``."""
    if layout.token_ids.device == device:
        return layout
    names = ("token_ids", "positions", "segment_of", "fresh")
    return replace(layout, **{name: getattr(layout, name).to(device) for name in names})


def check_layout(layout: Layout, context: KVBlock | None) -> None:
    """Check that a prompt's rows and context are consistent.

    :raises ConfigError: no query, positions that do not increase, query rows that are not fresh, or a context block
        that has another length, or is missing while context rows are not fresh
    """
    if not layout.context <= layout.query < layout.rows:
        raise ConfigError(
            f"a prompt of {layout.rows} rows needs a query after its {layout.context} context rows, "
            f"but the query starts at row {layout.query}."
        )
    if not bool((layout.positions[1:] > layout.positions[:-1]).all()):
        raise ConfigError("positions of a prompt must increase from row to row.")
    if not bool(layout.fresh[layout.query :].all()):
        raise ConfigError("query rows must be fresh, because no block has them: mark them fresh.")
    if context is not None and context.k.shape[2] != layout.context:
        raise ConfigError(
            f"the context block holds {context.k.shape[2]} tokens, but the prompt has {layout.context} context rows."
        )
    if context is None and layout.context and not bool(layout.fresh[: layout.context].all()):
        raise ConfigError(f"the prompt's {layout.context} context rows have no block: give one, or mark them fresh.")
