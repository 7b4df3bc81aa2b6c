"""The attention function the model's own layers call. Registered once; all state of a forward travels in kwargs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn
from transformers import AttentionInterface

from keep_agent.errors import ModelError
from memory.engine.attention.kernels import AttentionParams, Block, Weights, grouped_attention
from memory.engine.attention.masks import MaskPlan
from memory.engine.attention.observer import AttentionObserver
from memory.engine.attention.rope import Angles, rotate
from memory.engine.attention.tiled import tiled_attention
from memory.kv_cache.dense import KVCache, Rows

NAME = "kv_memory"


@dataclass(slots=True)
class LayerAttention:
    """One layer's attention, computed when somebody wants it, for whoever asks about its weights."""

    query: torch.Tensor  # rotated, (requests, heads, active rows, head_dim)
    keys: torch.Tensor  # (requests, kv_heads, visible rows, head_dim)
    values: torch.Tensor
    asked: AttentionParams
    blocks: Sequence[Block]
    keeps: bool  # whether `weights` may be kept: they are large
    _out: torch.Tensor | None = None
    _weights: list[torch.Tensor] = field(default_factory=list)

    @property
    def weights(self) -> Sequence[torch.Tensor]:
        """Those of all rows, one per block, (requests * heads, rows, keys); none if they are not kept."""
        if self.keeps:
            self.of_all()
        return self._weights

    def of_all(self, columns: Weights | None = None) -> torch.Tensor:
        """(requests, active rows, heads, head_dim); ``columns`` takes the weights instead of this."""
        if self._out is None:
            kept = self._weights if self.keeps and columns is None else columns
            self._out = self._attend(self.query, self.blocks, kept)
        return self._out

    def of(self, rows: torch.Tensor, blocks: Sequence[Block]) -> torch.Tensor:
        """The same, but those not among the numbers ``rows`` may be anything finite; ``blocks`` are these rows'."""
        if self._out is not None:
            return self._out
        out = self.query.new_zeros(self.query.transpose(1, 2).shape)
        out[:, rows] = self._attend(self.query[:, :, rows], blocks, None)
        return out

    def _attend(self, query: torch.Tensor, blocks: Sequence[Block], kept: Weights | None) -> torch.Tensor:
        asked = self.asked
        return grouped_attention(query, self.keys, self.values, blocks, asked.scale, asked.softcap, asked.sinks, kept)


@dataclass(slots=True)
class PromptPass:
    """State of one forward over some rows of a prompt.

    ``angles`` by RoPE key belong to the rows of this pass. Where unrotated keys are wanted (``bare``) the layers are
    given identity angles and rotation happens here; elsewhere the layers rotate by themselves.
    """

    cache: KVCache
    rows: Rows
    visible: int  # key rows 0:visible are read
    angles: Angles
    plan: MaskPlan
    rope_keys: tuple[str, ...]
    bare: bool = False
    fill: Callable[[int, torch.Tensor], None] | None = None  # bare passes: sees a layer's unrotated queries first
    choose: Callable[[], tuple[torch.Tensor, MaskPlan] | None] | None = None  # whose attention is wanted: numbers, plan
    keep_weights: bool = False
    witness: AttentionObserver | None = None
    attended: LayerAttention | None = None

    @property
    def count(self) -> int:
        """Rows of the pass."""
        return self.rows.stop - self.rows.start if isinstance(self.rows, slice) else self.rows.numel()


@dataclass(slots=True)
class CoupledPass:
    """Two passes in one forward: the rows of ``first``, and behind them those of ``second``, which is bare.

    In every layer ``second`` attends first; then ``between`` is called, which may give the other what it made.
    """

    first: PromptPass
    second: PromptPass
    angles: Angles  # of the rows of both, those of ``second`` unmoved; unused if ``first`` is bare as well
    between: Callable[[int], None]

    @property
    def bare(self) -> bool:
        return self.first.bare


class BatchPass(Protocol):
    """State of one forward over a row of each of several requests, which reads their caches by itself."""

    @property
    def angles(self) -> Angles:
        """By RoPE key, (requests, 1, width)."""
        ...

    @property
    def bare(self) -> bool: ...

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, asked: AttentionParams
    ) -> torch.Tensor:
        """Store keys and values (requests, kv_heads, 1, head_dim), and attend: (requests, 1, heads, head_dim)."""
        ...


def memory_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    sliding_window: int | None = None,
    s_aux: torch.Tensor | None = None,
    softcap: float | None = None,
    memory_pass: PromptPass | CoupledPass | BatchPass | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Write the pass's keys and values into its cache and attend over the visible rows: (1, rows, heads, head_dim)."""
    state, layer, asked = memory_pass, module.layer_idx, AttentionParams(scaling, sliding_window, softcap, s_aux)
    if state is None:
        raise ModelError("this model is driven by the memory engine; use Engine.forward_plain for a plain forward.")
    if isinstance(state, PromptPass):
        return _own(module, query, key, value, asked, state), None
    if not isinstance(state, CoupledPass):
        return state.attend(layer, query, key, value, asked), None
    sizes = [query.shape[2] - state.second.count, state.second.count]
    own, other = zip(*(x.split(sizes, 2) for x in (query, key, value)), strict=True)
    behind = _own(module, *other, asked, state.second)
    state.between(layer)
    return torch.cat([_own(module, *own, asked, state.first), behind], 1), None


def _own(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    asked: AttentionParams,
    state: PromptPass,
) -> torch.Tensor:
    """Of a pass of one prompt's rows."""
    layer, softcap, sinks = module.layer_idx, asked.softcap, asked.sinks
    if state.bare:
        if state.fill is not None:
            state.fill(layer, query)
        state.cache.write_raw(layer, state.rows, key)
        angles = state.angles[state.rope_keys[layer]]
        query, key = rotate(module, query, *angles), rotate(module, key, *angles)
    state.cache.write(layer, state.rows, key, value)
    blocks, witness = state.plan.blocks(asked.window), state.witness
    if state.cache.tiled:
        if witness is not None:
            witness.see(layer, query, None, None, asked.scale, softcap, sinks)
        first = min(0 if block.prefix else block.k0 for block in blocks)
        return tiled_attention(query, state.cache.tiles(layer, first), blocks, asked.scale, softcap, sinks)
    keys, values = state.cache.read(layer, state.visible)
    attended = state.attended = LayerAttention(query, keys, values, asked, blocks, state.keep_weights)
    wanted = None if state.choose is None else state.choose()
    if wanted is not None:
        rows, plan = wanted
        return attended.of(rows, plan.blocks(asked.window))
    columns = None if witness is None else witness.columns(blocks)
    out = attended.of_all(columns)
    if witness is not None:
        witness.see(layer, query, keys, columns, asked.scale, softcap, sinks)
    return out


AttentionInterface.register(NAME, memory_attention)
