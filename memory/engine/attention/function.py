"""Attention function that is registered with transformers; the model's layers call it with a forward's state.

The function writes a pass's rotated keys and its values into the cache, and gives a `LayerAttention` to the pass's
`AttentionHook`. Other code observes a layer's attention, and chooses the rows that attend, only through this hook.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn
from transformers import AttentionInterface

from keep_agent.errors import CapacityError, ModelError
from memory.engine.attention.kernels import AttentionParams, LayerAttention, MaskPlan
from memory.engine.attention.tiled import tiled_attention
from memory.engine.models.model_spec import ModelSpec
from memory.kv_cache.block import KVBlock
from memory.kv_cache.dense import DenseCache, Rows, WorkingCache

Angles = Mapping[str, tuple[torch.Tensor, torch.Tensor]]  # by RoPE key: cos and sin, (1, rows, width)


def at_rows(angles: Angles, rows: slice | torch.Tensor) -> Angles:
    """Select the angles of ``rows``."""
    return {key: (cos[:, rows], sin[:, rows]) for key, (cos, sin) in angles.items()}


def rotate(attention: nn.Module, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate ``x`` (batch, heads, rows, head_dim) by the model family's own function; cos, sin (1, rows, width)."""
    apply = sys.modules[type(attention).__module__].apply_rotary_pos_emb
    return apply(x, x[:, :0], cos, sin)[0]


@dataclass
class RopeTables:
    """Cos and sin by position, from the model's ``rotary``; layers of equal RoPE settings share a key and its table."""

    rotary: nn.Module
    attention: nn.Module
    spec: ModelSpec

    def __post_init__(self) -> None:
        self._size = 0
        self._tables: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def angles_at(self, positions: torch.Tensor, top: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Return cos and sin of ``positions`` (rows,), all below ``top``, by RoPE key.

        :raises CapacityError: positions beyond the length at which the model's RoPE changes (longrope).
        """
        if top > self._size:
            self._grow(top, positions.device)
        return {key: (cos[positions][None], sin[positions][None]) for key, (cos, sin) in self._tables.items()}

    def identity(self, rows: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return angles of no rotation: cos 1, sin 0."""
        cos, _ = next(iter(self.angles_at(torch.zeros(1, dtype=torch.long, device=device), 1).values()))
        shape = (1, rows, cos.shape[-1])
        return cos.new_ones(shape), cos.new_zeros(shape)

    def rotate_layers(self, keys: torch.Tensor, angles: Angles, first: int = 0) -> torch.Tensor:
        """Rotate ``keys`` (layers, kv_heads, rows, head_dim) of layers ``first``, ``first + 1``, ..."""
        if len(angles) == 1:
            return rotate(self.attention, keys, *next(iter(angles.values())))
        result = torch.empty_like(keys)
        for key, (cos, sin) in angles.items():
            index = [i for i in range(keys.shape[0]) if self.spec.rope_keys[first + i] == key]
            if index:
                result[index] = rotate(self.attention, keys[index], cos, sin)
        return result

    def place_block(self, cache: DenseCache, block: KVBlock, start: int) -> None:
        """Write all layers of a block to ``cache``, whose rows are numbered by position, from row ``start`` on."""
        device, stop = cache.k.device, start + block.k.shape[2]
        k, v = block.k.to(device)[:], block.v.to(device)[:]
        angles = self.angles_at(torch.arange(start, stop, device=device), stop)
        cache.k[:, 0, :, start:stop] = self.rotate_layers(k, angles)
        cache.v[:, 0, :, start:stop] = v
        if cache.raw is not None:
            cache.raw[:, 0, :, start:stop] = k

    def place(
        self, cache: WorkingCache, layer: int, rows: Rows, angles: Angles, k: torch.Tensor, v: torch.Tensor
    ) -> None:
        """Rotate keys ``k`` to ``angles``, and write them and ``v`` at ``rows``; both (1, kv_heads, rows, head_dim)."""
        rotated = self.rotate_layers(k, angles, layer)
        cache.write_raw(layer, rows, k)
        cache.write(layer, rows, rotated, v)

    def _grow(self, top: int, device: torch.device) -> None:
        limit = self.spec.position_limit
        if limit is not None and top > limit:
            raise CapacityError(
                f"position {top - 1} is beyond the {limit} tokens up to which this model's longrope "
                "keeps its frequencies; shorten the prompt or use a model with yarn or llama3 RoPE."
            )
        size = max(top, 2 * self._size, 512)
        size = min(size, limit) if limit is not None else size
        like = torch.empty(1, 1, dtype=self.spec.dtype, device=device)
        ids = torch.arange(size, device=device)[None]
        by_key = "layer_type" in inspect.signature(type(self.rotary).forward).parameters
        for key in sorted(set(self.spec.rope_keys)):
            cos, sin = self.rotary(like, ids, key) if by_key else self.rotary(like, ids)
            self._tables[key] = (cos[0], sin[0])
        self._size = size


class AttentionHook(Protocol):
    """Hook that computes the attention of a pass layer by layer, and may observe it or choose the rows that attend."""

    def on_queries(self, layer: int, query: torch.Tensor) -> None:
        """Receive unrotated queries (1, heads, rows, head_dim) before keys are read, if `PromptPass.unrotated`."""
        ...

    def attend(self, attention: LayerAttention) -> torch.Tensor:
        """Return the layer's attention output (requests, active rows, heads, head_dim)."""
        ...


ATTENTION_NAME = "kv_memory"


@dataclass(slots=True)
class PromptPass:
    """State of one forward over some rows of a prompt.

    ``angles`` are those of this pass's rows. By default the model's layers rotate queries and keys. With ``unrotated``
    the layers get angles of no rotation; the attention function rotates, and therefore also has unrotated keys.
    """

    cache: WorkingCache
    rows: Rows
    visible: int  # key rows 0:visible are read
    angles: Angles
    plan: MaskPlan
    rope_keys: tuple[str, ...]
    unrotated: bool = False

    @property
    def count(self) -> int:
        """Number of rows of the pass."""
        return self.rows.stop - self.rows.start if isinstance(self.rows, slice) else self.rows.numel()


@dataclass(slots=True)
class CoupledPass:
    """Two passes in one forward: rows of ``first``, then those of ``second``, which is unrotated.

    In every layer, first ``second`` attends, then ``copier`` copies its keys and values to the cache of ``first``, and
    then ``first`` attends.
    """

    first: PromptPass
    second: PromptPass
    angles: Angles  # for the rows of both passes, no rotation for those of ``second``; empty if ``first`` is unrotated
    unrotated: bool  # whether ``first`` is unrotated
    copier: KVCopier


@dataclass(slots=True)
class KVCopier:
    """Copier of keys and values from rows ``source`` of the cache ``units`` to ``rows`` of ``cache``, layer by layer.

    It reads unrotated keys, and rotates them to ``angles``, which are those of ``rows``.
    """

    rope: RopeTables
    units: DenseCache
    source: torch.Tensor
    cache: WorkingCache
    rows: torch.Tensor
    angles: Angles

    def copy(self, layer: int) -> None:
        keys, values = self.units.raw[layer][:, :, self.source], self.units.v[layer][:, :, self.source]
        self.rope.place(self.cache, layer, self.rows, self.angles, keys, values)


class BatchPass(Protocol):
    """State of a forward that computes one row for each of several requests, with access to the requests' caches."""

    @property
    def angles(self) -> Angles:
        """Angles by RoPE key, (requests, 1, width)."""
        ...

    @property
    def unrotated(self) -> bool: ...

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, params: AttentionParams
    ) -> torch.Tensor:
        """Store keys and values (requests, kv_heads, 1, head_dim); returns attention (requests, 1, heads, head_dim)."""
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
    """Write the pass's keys and values into its cache; returns attention (requests, rows, heads, head_dim)."""
    state, params = memory_pass, AttentionParams(scaling, sliding_window, softcap, s_aux)
    if state is None:
        raise ModelError(
            "this model is driven by the memory engine; use the engine's forward_plain for a plain forward."
        )
    if isinstance(state, PromptPass):
        return _prompt_attention(module, query, key, value, params, state, attention_hook), None
    if not isinstance(state, CoupledPass):
        return state.attend(module.layer_idx, query, key, value, params), None
    sizes = [query.shape[2] - state.second.count, state.second.count]
    first, second = zip(*(x.split(sizes, 2) for x in (query, key, value)), strict=True)
    second_output = _prompt_attention(module, *second, params, state.second, None)
    state.copier.copy(module.layer_idx)
    return torch.cat([_prompt_attention(module, *first, params, state.first, attention_hook), second_output], 1), None


def _prompt_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    params: AttentionParams,
    state: PromptPass,
    hook: AttentionHook | None,
) -> torch.Tensor:
    """Compute the attention of one prompt's rows, after writing their keys and values into its cache."""
    layer, cache = module.layer_idx, state.cache
    if state.unrotated:
        if hook is not None:
            hook.on_queries(layer, query)
        angles, raw = state.angles[state.rope_keys[layer]], key
        query, key = rotate(module, query, *angles), rotate(module, key, *angles)
        cache.write_raw(layer, state.rows, raw)
    cache.write(layer, state.rows, key, value)
    keys, values = (None, None) if cache.tiled else cache.read(layer, state.visible)
    blocks, tiles = state.plan.blocks(params.window), None
    if cache.tiled:
        first = min(0 if block.prefix else block.k0 for block in blocks)
        tiles = partial(
            tiled_attention, query, cache.tiles(layer, first), blocks, params.scale, params.softcap, params.sinks
        )
    attention = LayerAttention(layer, query, keys, values, params, blocks, tiles)
    return attention.output() if hook is None else hook.attend(attention)


AttentionInterface.register(ATTENTION_NAME, memory_attention)
