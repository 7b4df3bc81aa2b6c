"""Lazy probe of one layer: attention mass, keys and values for a recompute stage, computed on demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import torch

from keep_agent.errors import ConfigError
from memory.engine.attention.kernels import LayerAttention, MaskBlock, bias_of, block_probabilities
from memory.engine.trace import HopReport, PrefillTrace
from memory.engine.transfer.link import ChooserThread
from memory.engine.transformers.decoder import Decoder
from memory.engine.transformers.encode import FusedEncoding
from memory.kv_cache.dense import DenseCache
from memory.prompt.layout import Layout


class LayerOutput(Protocol):
    """Hidden states (1, active rows, hidden) after a layer."""

    def get(self) -> torch.Tensor: ...


@dataclass
class DeferredOutput:
    """Output that is computed on first use."""

    compute: Callable[[], torch.Tensor]
    hidden: torch.Tensor | None = None

    def get(self) -> torch.Tensor:
        if self.hidden is None:
            self.hidden = self.compute()
        return self.hidden


@dataclass
class AwaitedOutput:
    """Output that another thread computes."""

    chooser: ChooserThread
    future: Future[torch.Tensor] = field(default_factory=Future)

    def get(self) -> torch.Tensor:
        hidden = self.future.result()
        self.chooser.wait_for_caller()  # on CUDA the MLP may be queued but not done
        return hidden


@dataclass
class MissingOutput:
    """Output that does not exist yet, because rows are chosen before the layer attends; `get` raises an error."""

    stage: str  # name of the recompute stage, for the error's text

    def get(self) -> torch.Tensor:
        raise ConfigError(f"{self.stage} declares by_mass, but reads KV of a later layer; declare by_mass=False.")


DIVISOR = 4  # weights of at most 1 / DIVISOR of the active rows are computed again; for more, kept weights are read


@dataclass
class ProbedPrompt:
    """Parts of a prefill that the probes of all its layers share."""

    decoder: Decoder
    layout: Layout
    cache: DenseCache
    trace: PrefillTrace
    fused: FusedEncoding | None  # units without a block, which the prefill encodes

    @cached_property
    def averaging(self) -> torch.Tensor:
        """Matrix (rows, segments) for segment means: 1 / (rows of the segment) if the row is in the segment, else 0."""
        owner = self.layout.segment_of
        member = owner[:, None] == torch.arange(len(self.layout.segments), device=owner.device)[None]
        mean = member.float() / member.sum(0).clamp(min=1)
        return mean.to(torch.promote_types(self.decoder.spec.dtype, torch.float32))


@dataclass
class LayerProbe:
    """Attention weights and keys/values of ``layer``, whose active rows are ``active``: a `memory.stages.Probe`.

    ``layer_input`` are the hidden states (1, active rows, hidden) before the layer; ``output`` has those after it.
    """

    prompt: ProbedPrompt
    layer: int
    active: torch.Tensor
    attention: LayerAttention
    layer_input: torch.Tensor
    output: LayerOutput
    used_mass: bool = False  # whether the stage has read attention mass

    def mass_from_query(self) -> torch.Tensor:
        self.used_mass = True
        first = int(torch.searchsorted(self.active, self.prompt.layout.query))
        if self._reads_kept_weights(self.active.numel() - first):
            return self._kept_mass[-1]
        rows = torch.arange(first, self.active.numel(), device=self.active.device)
        return self._mass(rows, self.prompt.averaging.new_full((1, rows.numel()), 1 / rows.numel()), causal=True)[0]

    def peak_from_query(self) -> torch.Tensor:
        self.used_mass = True
        first = int(torch.searchsorted(self.active, self.prompt.layout.query))
        weights = self._head_weights(torch.arange(first, self.active.numel(), device=self.active.device), causal=True)
        mass = weights.to(self.prompt.averaging.dtype) @ (self.prompt.averaging > 0).to(self.prompt.averaging.dtype)
        return (mass / mass.sum(-1, keepdim=True).clamp(min=torch.finfo(mass.dtype).tiny)).amax((0, 1))

    def mass_between(self, segments: torch.Tensor, causal: bool = True) -> torch.Tensor:
        self.used_mass = True
        owner = self.prompt.layout.segment_of[self.active]
        selected = torch.zeros(len(self.prompt.layout.segments) + 1, dtype=torch.bool, device=owner.device)
        selected[segments] = True  # index -1 stands for rows of no segment
        rows = selected[owner].nonzero()[:, 0]
        if causal and self._reads_kept_weights(rows.numel()):
            return self._kept_mass[segments]
        member = owner[rows][None] == segments.to(owner.device)[:, None]
        return self._mass(rows, member.float() / member.sum(1, keepdim=True).clamp(min=1), causal)

    def mass_on_rows(self, sources: torch.Tensor) -> torch.Tensor:
        self.used_mass = True
        rows = self._numbers_of(sources)
        if self._reads_kept_weights(rows.numel()):
            return self._kept_on_rows(rows)
        heads = self.attention.query.shape[1]
        return heads * self._row_weights(rows, causal=True).sum(0)

    def fresh_kv(self, layer: int, rows: torch.Tensor, kinds: str = "kv") -> tuple[torch.Tensor, ...]:
        if layer not in (self.layer, self.layer + 1):
            raise ConfigError(
                f"after layer {self.layer} only layers {self.layer} and {self.layer + 1} can be probed, not {layer}."
            )
        hidden = self.layer_input if layer == self.layer else self.output.get()
        return self.prompt.decoder.unrotated_kv(layer, hidden[:, self._numbers_of(rows)], kinds)

    def cached_kv(self, layer: int, rows: torch.Tensor, kinds: str = "kv") -> tuple[torch.Tensor, ...]:
        numbers = rows.cpu().numpy()
        owner = self.prompt.layout.block_of[numbers]
        if self.prompt.fused is not None and (owner < 0).any():
            return self._with_fused(layer, rows, torch.from_numpy(owner < 0).to(rows.device), kinds)
        if not owner.size or owner.min() < 0:
            first = int(numbers[owner.argmin()]) if owner.size else "none"
            raise ConfigError(f"no block covers row {first}: request only rows of `layout.reused`")
        owners, number = np.unique(owner, return_inverse=True)
        placements = [self.prompt.layout.placements[i] for i in owners]
        stops = np.cumsum([p.block.tokens for p in placements])  # end of each block in their concatenation
        ends = np.array([p.stop for p in placements])
        index = torch.from_numpy(numbers + (stops - ends)[number])
        stored = ([getattr(p.block, kind)[layer] for p in placements] for kind in kinds)
        return tuple(join_parts(parts, rows.device)[:, index].to(rows.device) for parts in stored)

    def _with_fused(self, layer: int, rows: torch.Tensor, new: torch.Tensor, kinds: str) -> tuple[torch.Tensor, ...]:
        """Return `cached_kv` of rows that this prefill encodes (``new`` (rows,) is True) or that blocks have (else)."""
        if layer > self.layer:
            self.output.get()  # runs this layer's MLP, also for the fused units, whose next KV are computed from it
        encoded = self.prompt.fused.kv(layer, rows[new], kinds)
        if bool(new.all()):
            return encoded
        results = []
        for encoded_part, stored in zip(encoded, self.cached_kv(layer, rows[~new], kinds), strict=True):
            whole = stored.new_empty(stored.shape[0], rows.numel(), stored.shape[2])
            whole[:, new], whole[:, ~new] = encoded_part, stored
            results.append(whole)
        return tuple(results)

    def report(self, hops: int, edges: Sequence[tuple[int, int, float]] = ()) -> None:
        self.prompt.trace.hops.append(HopReport(self.layer, hops, tuple(edges)))

    def _numbers_of(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the indices of the prompt ``rows`` (sorted) among the active ones."""
        index = torch.searchsorted(self.active, rows).clamp(max=self.active.numel() - 1)
        if not torch.equal(self.active[index], rows):
            first = int(rows[self.active[index] != rows][0])
            raise ConfigError(
                f"row {first} is not active at layer {self.layer}, so it has neither query nor fresh keys: "
                "request only rows among `active`"
            )
        return index

    def _reads_kept_weights(self, rows: int) -> bool:
        """Decide whether to read the layer's kept attention weights, or compute those of ``rows`` rows again.

        Reading takes the weights of all active rows at once; for a few rows it is faster to compute only their weights.
        """
        return "_kept_mass" in self.__dict__ or (DIVISOR * rows > self.active.numel() and bool(self.attention.weights))

    @cached_property
    def _kept_mass(self) -> torch.Tensor:
        """Average the kept weights to mass (segments + 1, segments): row i from segment i, the last from the query."""
        layout, averaging = self.prompt.layout, self.prompt.averaging
        count, total, owner = len(layout.segments), layout.rows, layout.segment_of[self.active]
        memory = torch.where(owner < 0, count + 1, owner)  # context rows form the last group, which is dropped
        groups, group = torch.where(self.active < layout.query, memory, count).unique(return_inverse=True)
        keys = averaging.new_zeros(groups.numel(), total)
        for block, weights in zip(self.attention.blocks, self.attention.weights, strict=True):
            stop = min(block.k1, total)  # without padded columns
            mean = weights.mean(0, dtype=averaging.dtype)[:, : stop - block.k0]
            keys[:, block.k0 : stop].index_add_(0, group[block.q0 : block.q1], mean)
        keys /= group.bincount()[:, None]
        mass = keys.new_zeros(count + 2, count)
        mass[groups] = keys @ averaging
        return mass[:-1]

    def _kept_on_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Sum kept attention weights over heads and the active rows numbered ``rows``; returns (prompt rows,)."""
        total, dtype = self.prompt.layout.rows, self.prompt.averaging.dtype
        mass = torch.zeros(total, dtype=dtype, device=rows.device)
        for block, weights in zip(self.attention.blocks, self.attention.weights, strict=True):
            inside = rows[(rows >= block.q0) & (rows < block.q1)] - block.q0
            stop = min(block.k1, total)  # without padded columns
            mass[block.k0 : stop] += weights[:, inside, : stop - block.k0].sum((0, 1), dtype=dtype)
        return mass

    def _mass(self, rows: torch.Tensor, groups: torch.Tensor, causal: bool) -> torch.Tensor:
        """Compute mass (groups, segments) from groups of the active rows numbered ``rows`` (sorted).

        :param groups: (groups, len(rows)) weight of each row in each group
        """
        averaging = self.prompt.averaging
        return (groups.to(averaging.dtype) @ self._row_weights(rows, causal)) @ averaging

    def _row_weights(self, rows: torch.Tensor, causal: bool) -> torch.Tensor:
        """Compute weights (len(rows), prompt rows) of the active rows numbered ``rows``, averaged over heads."""
        return self._head_weights(rows, causal).mean(0, dtype=self.prompt.averaging.dtype)

    def _head_weights(self, rows: torch.Tensor, causal: bool) -> torch.Tensor:
        """Compute weights (heads, len(rows), prompt rows) of the active rows numbered ``rows``."""
        attention, params, layout = self.attention, self.attention.params, self.prompt.layout
        total, sources, places = layout.rows, self.active[rows], layout.positions
        visible = torch.arange(total, device=rows.device)[None] <= (sources[:, None] if causal else total)
        visible = visible.expand(rows.numel(), total)
        if params.window is not None:
            visible = visible & (places[None] > places[sources][:, None] - params.window)
        block = MaskBlock(0, rows.numel(), 0, total, bias_of(visible, attention.query.dtype))
        queries, keys = attention.query[:, :, rows] * params.scale, self.prompt.cache.k[self.layer, :, :, :total]
        weights = block_probabilities(queries, keys.flatten(0, 1), block, params.softcap, params.sinks)
        return weights.unflatten(0, (queries.shape[0], -1))[0]


def join_parts(parts: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Concatenate parts (kv_heads, rows, head_dim); if they are on several devices, all move to ``device``."""
    together = len({part.device for part in parts}) == 1
    return torch.cat(parts if together else [part.to(device) for part in parts], 1)
