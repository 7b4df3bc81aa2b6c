"""KEEP's three interfaces under the paper's names, for one prompt whose layers the caller runs step by step."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch

from keep_agent.errors import ConfigError
from memory.engine.base import PrefillResult
from memory.engine.transformers.prefill import LayerwisePrefill
from memory.engine.transformers.probe import DeferredOutput, LayerProbe
from memory.kv_cache.dense import DenseCache
from memory.prompt.layout import Layout, Transfer
from memory.stages import Capabilities

KV = tuple[torch.Tensor, torch.Tensor]
Call = Callable[[Callable[[], Any]], Any]  # runs work on the engine's worker


@dataclass(frozen=True)
class ManualLoading:
    """Loading stage without transfers: the caller loads keys and values with ``load_memory``."""

    capabilities: ClassVar[Capabilities] = Capabilities()
    overlaps: ClassVar[bool] = False

    def schedule(self, layout: Layout, layer: int, active: torch.Tensor, layers: int) -> list[Transfer]:
        return []


class KeepInterfaces:
    """Interfaces of KEEP (arXiv 2602.23592, section 5) that load, compute and choose, one layer after the other.

    Before a layer's ``prefill_layer``, load every memory that this layer does not recompute; else it raises an error.
    Memory ids are segment ids. `TransformersEngine.steps` makes this object.
    """

    def __init__(self, run: LayerwisePrefill, call: Call) -> None:
        self._run, self._call = run, call
        self._place = {span.segment: number for number, span in enumerate(run.layout.segments)}
        self._rows = run.active.rows  # rows of the next input of `prefill_layer`
        self._attention: LayerProbe | None = None

    @property
    def input(self) -> torch.Tensor:
        """Hidden states (1, active rows, hidden) that enter layer 0."""
        return self._call(self._run.embed)

    @property
    def cache(self) -> DenseCache:
        """The working cache that ``load_memory`` and ``prefill_layer`` fill."""
        return self._run.cache

    @property
    def attention(self) -> LayerProbe:
        """The attention of the layer computed last."""
        if self._attention is None:
            raise ConfigError("no layer has been computed yet: call prefill_layer first.")
        return self._attention

    def active_ids(self) -> list[str]:
        """Return the ids of the memories with rows that the next layer computes."""
        owners = self._run.layout.segment_of[self._run.active.rows].unique().tolist()
        return [self._run.layout.segments[i].segment for i in owners if i >= 0]

    def load_memory(self, memory_id: str, layer_id: int) -> KV:
        """Move one memory's slice of a layer into the cache; returns its rotated K, and V (kv_heads, tokens, head_dim).

        :raises ConfigError: the memory is not in this prompt or has no block.
        """
        if memory_id not in self._place:
            raise ConfigError(f"memory {memory_id!r} is not in this prompt.")
        return self._call(partial(self._load, self._place[memory_id], layer_id))

    def prefill_layer(
        self, input: torch.Tensor, layer_id: int, kv_cache: DenseCache
    ) -> tuple[torch.Tensor, DenseCache]:
        """Compute the active rows of ``input``, the output of the previous layer; returns output and cache."""
        if kv_cache is not self.cache:
            raise ConfigError("prefill_layer needs the working cache of its own prompt.")
        return self._call(partial(self._compute, input, layer_id)), kv_cache

    def importance_evaluation(self, layer_id: int, memory_ids: Collection[str], attention: LayerProbe) -> list[str]:
        """Choose the ``memory_ids`` that layer ``layer_id`` + 1 recomputes, by the method's recompute stage."""
        if attention is not self._attention or attention.layer != layer_id:
            raise ConfigError(f"importance at layer {layer_id} needs this layer's attention: call prefill_layer first.")
        self._call(partial(self._run.choose, attention))
        wanted_ids = set(memory_ids)
        return [id for id in self.active_ids() if id in wanted_ids]

    def finish(self, output: torch.Tensor) -> PrefillResult:
        """Compute the logits of the prompt's last row from the last layer's ``output``."""
        return self._call(partial(self._run.finish, output))

    def _load(self, number: int, layer: int) -> KV:
        layout, loader = self._run.layout, self._run.loader
        span = layout.segments[number]
        transfers = layout.transfers((layout.segment_of == number).cpu().numpy(), layer, layer + 1)
        if not transfers:
            raise ConfigError(f"memory {span.segment!r} has no block to load: its rows are fresh.")
        loader.submit(layer, transfers)
        loader.wait(layer, None)
        k, v = self.cache.read(layer, span.stop)
        return k[0, :, span.start :], v[0, :, span.start :]

    def _compute(self, hidden: torch.Tensor, layer: int) -> torch.Tensor:
        rows = self._run.active.rows
        if rows is not self._rows:
            hidden, self._rows = hidden[:, torch.searchsorted(self._rows, rows)], rows
        output, attention = self._run.compute(layer, hidden)
        self._attention = self._run.probe(attention, hidden, DeferredOutput(lambda: output, output))
        return output
