"""Attention function that the model's own layers call. Registered once; all state of a forward travels in kwargs.

The function writes the pass's keys and values into its cache, rotates them, and hands a `LayerAttention` to the pass's
`AttentionHook`: the one explicit object between a layer's attention and whatever observes it or chooses its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn
from transformers import AttentionInterface

from keep_agent.errors import ModelError
from memory.engine.attention.kernels import AttentionParams
from memory.engine.attention.layer_attention import AttentionHook, LayerAttention
from memory.engine.attention.masks import MaskPlan
from memory.engine.attention.rope import Angles, rotate
from memory.engine.attention.tiled import tiled_attention
from memory.kv_cache.dense import Rows, WorkingCache

NAME = "kv_memory"


@dataclass(slots=True)
class PromptPass:
    """State of one forward over some rows of a prompt.

    ``angles`` by RoPE key belong to the rows of this pass. Where unrotated keys are wanted (``bare``) the layers are
    given identity angles and rotation happens here; elsewhere the layers rotate by themselves.
    """

    cache: WorkingCache
    rows: Rows
    visible: int  # key rows 0:visible are read
    angles: Angles
    plan: MaskPlan
    rope_keys: tuple[str, ...]
    bare: bool = False

    @property
    def count(self) -> int:
        """Rows of the pass."""
        return self.rows.stop - self.rows.start if isinstance(self.rows, slice) else self.rows.numel()


@dataclass(slots=True)
class CoupledPass:
    """Two passes in one forward: the rows of ``first``, and behind them those of ``second``, which is bare.

    In every layer ``second`` attends first; then ``between`` is called, which may give the other its keys and values.
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
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, params: AttentionParams
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
    attention_hook: AttentionHook | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Write the pass's keys and values into its cache and attend over the visible rows: (1, rows, heads, head_dim)."""
    state, params = memory_pass, AttentionParams(scaling, sliding_window, softcap, s_aux)
    if state is None:
        raise ModelError("this model is driven by the memory engine; use its forward_plain for a plain forward.")
    if isinstance(state, PromptPass):
        return _prompt_attention(module, query, key, value, params, state, attention_hook), None
    if not isinstance(state, CoupledPass):
        return state.attend(module.layer_idx, query, key, value, params), None
    sizes = [query.shape[2] - state.second.count, state.second.count]
    first, second = zip(*(x.split(sizes, 2) for x in (query, key, value)), strict=True)
    behind = _prompt_attention(module, *second, params, state.second, None)
    state.between(module.layer_idx)
    return torch.cat([_prompt_attention(module, *first, params, state.first, attention_hook), behind], 1), None


def _prompt_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    params: AttentionParams,
    state: PromptPass,
    hook: AttentionHook | None,
) -> torch.Tensor:
    """Attention of one prompt's rows."""
    layer, cache = module.layer_idx, state.cache
    if state.bare:
        if hook is not None:
            hook.before(layer, query)
        cache.write_raw(layer, state.rows, key)
        angles = state.angles[state.rope_keys[layer]]
        query, key = rotate(module, query, *angles), rotate(module, key, *angles)
    cache.write(layer, state.rows, key, value)
    blocks, tiles, keys, values = state.plan.blocks(params.window), None, None, None
    if cache.tiled:
        first = min(0 if block.prefix else block.k0 for block in blocks)
        tiles = partial(
            tiled_attention, query, cache.tiles(layer, first), blocks, params.scale, params.softcap, params.sinks
        )
    else:
        keys, values = cache.read(layer, state.visible)
    attention = LayerAttention(layer, query, keys, values, params, blocks, tiles)
    return attention.output() if hook is None else hook.attend(attention)


AttentionInterface.register(NAME, memory_attention)
