"""Decoder: the model's own layers, called one at a time on active rows only, and checks of token ids and logits."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PreTrainedModel

from keep_agent.errors import ConfigError, ModelError
from memory.engine.attention.function import AttentionHook, BatchPass, CoupledPass, PromptPass, RopeTables
from memory.engine.attention.kernels import RowPadding, onednn_multiplies
from memory.engine.models.model_spec import ModelSpec

if TYPE_CHECKING:
    from memory.kv_cache.dense import WorkingCache

FEED_ROWS = 512  # rows of an MLP at once on a CPU, so that activations fit into the processor's cache


@dataclass
class Decoder:
    """Causal language model in parts: embedding, layers, head."""

    module: PreTrainedModel
    spec: ModelSpec

    def __post_init__(self) -> None:
        base = self.module.model
        self.layers: list[nn.Module] = list(base.layers)
        self.rope = RopeTables(base.rotary_emb, self.layers[0].self_attn, self.spec)
        self.softcap: float | None = getattr(self.module.config, "final_logit_softcapping", None)
        self._has_post_norms = hasattr(self.layers[0], "pre_feedforward_layernorm")  # norms after attention and MLP too
        self._identity: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @cached_property
    def device(self) -> torch.device:
        return self.module.device

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return hidden states (1, rows, hidden) of ``token_ids`` (rows,), scaled as the model family requires."""
        return self.module.model.embed_tokens(token_ids[None])

    def layer(
        self,
        index: int,
        hidden: torch.Tensor,
        state: PromptPass | BatchPass,
        hook: AttentionHook | None = None,
    ) -> torch.Tensor:
        """Compute one decoder layer on the rows of ``state``: (1, rows, hidden) in and out."""
        return self.feed(index, self.attend(index, hidden, state, hook))

    def attend(
        self,
        index: int,
        hidden: torch.Tensor,
        state: PromptPass | CoupledPass | BatchPass,
        hook: AttentionHook | None = None,
    ) -> torch.Tensor:
        """Compute a layer's attention half, residual included; rows dropped after it skip the MLP half (`feed`)."""
        embeddings = self.no_rotation(hidden.shape[1]) if state.unrotated else state.angles[self.spec.rope_keys[index]]
        layer = self.layers[index]
        output, _ = layer.self_attn(
            hidden_states=layer.input_layernorm(hidden),
            attention_mask=None,
            position_ids=None,
            past_key_values=None,
            position_embeddings=embeddings,
            memory_pass=state,
            attention_hook=hook,
        )
        return hidden + (layer.post_attention_layernorm(output) if self._has_post_norms else output)

    def feed(self, index: int, mixed: torch.Tensor) -> torch.Tensor:
        """Compute the MLP half of a layer on ``mixed`` (1, rows, hidden), which are rows of the output of `attend`."""
        if mixed.is_cuda or mixed.shape[1] <= FEED_ROWS:
            return self._feed(index, mixed)
        return torch.cat([self._feed(index, rows) for rows in mixed.split(FEED_ROWS, 1)], 1)

    def _feed(self, index: int, mixed: torch.Tensor) -> torch.Tensor:
        layer = self.layers[index]
        before = layer.pre_feedforward_layernorm if self._has_post_norms else layer.post_attention_layernorm
        output = layer.mlp(before(mixed))
        output = output[0] if isinstance(output, tuple) else output  # experts also return their router's scores
        return mixed + (layer.post_feedforward_layernorm(output) if self._has_post_norms else output)

    def run(
        self, hidden: torch.Tensor, state: PromptPass | BatchPass, hook: AttentionHook | None = None
    ) -> torch.Tensor:
        """Compute all layers on the same rows."""
        for index in range(self.spec.layers):
            hidden = self.layer(index, hidden, state, hook)
        return hidden

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits (..., vocab) of hidden states after the last layer."""
        logits = linear(self.module.lm_head, self.module.model.norm(hidden))
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap

    def unrotated_kv(self, index: int, hidden: torch.Tensor, kinds: str = "kv") -> tuple[torch.Tensor, ...]:
        """Project (1, rows, hidden) to ``kinds``: unrotated keys "k", values "v", each (kv_heads, rows, head_dim)."""
        attention, normed = self.layers[index].self_attn, self.layers[index].input_layernorm(hidden)
        makers = {"k": (attention.k_proj, getattr(attention, "k_norm", None)), "v": (attention.v_proj, None)}
        return tuple(self._heads(project(normed), norm) for project, norm in map(makers.__getitem__, kinds))

    def unrotated_q(self, index: int, hidden: torch.Tensor) -> torch.Tensor:
        """Project (1, rows, hidden) to unrotated queries ``(heads, rows, head_dim)`` of layer ``index``."""
        attention, normed = self.layers[index].self_attn, self.layers[index].input_layernorm(hidden)
        return self._heads(attention.q_proj(normed), getattr(attention, "q_norm", None))

    def _heads(self, projected: torch.Tensor, norm: nn.Module | None) -> torch.Tensor:
        """Reshape (1, rows, heads * head_dim) to (heads, rows, head_dim)."""
        parts = projected[0].unflatten(-1, (-1, self.spec.head_dim))
        return (parts if norm is None else norm(parts)).transpose(0, 1)

    def no_rotation(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return angles of no rotation, cached until the number of rows changes."""
        if rows not in self._identity:
            self._identity = {rows: self.rope.identity(rows, self.device)}
        return self._identity[rows]


def check_ids(token_ids: Sequence[int] | torch.Tensor, rows: int) -> None:
    """Raise ConfigError for a token beyond the model's ``rows`` embeddings, which would crash a CUDA device."""
    highest = int(max(token_ids, default=0)) if not isinstance(token_ids, torch.Tensor) else int(token_ids.max())
    if highest >= rows:
        raise ConfigError(
            f"token {highest} has no embedding, because the model has only {rows} embeddings: leave out its text (a "
            "placeholder of an image or a sound), or use the model's own tokenizer."
        )


def are_finite(logits: torch.Tensor) -> torch.Tensor:
    """Check that all ``logits`` are finite; returns a bool tensor on their device, without synchronisation."""
    return torch.stack(logits.aminmax()).isfinite().all()


def check_finite(logits: torch.Tensor, dtype: torch.dtype, *caches: WorkingCache) -> None:
    """Raise ModelError for ``logits`` that are not finite; ``caches``: see `not_finite`."""
    if not bool(are_finite(logits)):
        raise not_finite(dtype, *caches)


def most_likely(logits: torch.Tensor, dtype: torch.dtype, *caches: WorkingCache) -> int:
    """Return the token with the largest of ``logits`` (vocab,), with one synchronisation; ``caches``: see `not_finite`.

    :raises ModelError: the logits are not finite
    """
    token, finite = torch.stack([logits.argmax(), are_finite(logits).long()]).tolist()
    if not finite:
        raise not_finite(dtype, *caches)
    return token


def not_finite(dtype: torch.dtype, *caches: WorkingCache) -> ModelError:
    """Make the error for logits that are not finite, and `erase` rows of ``caches`` that hold such numbers."""
    for cache in caches:
        cache.erase()
    name = str(dtype).removeprefix("torch.")
    finer = "fetch its weights again" if dtype in (torch.float32, torch.float64) else "set model.dtype=float32"
    return ModelError(
        f"the model's logits are not finite in {name}, so they cannot be used: the model's weights are damaged, or "
        f"{name} cannot hold what it computes; {finer}, or use another model."
    )


LINEAR_PADDING = RowPadding(16, 16)  # for the input rows of linear layers
PACK_BATCH = 256  # number of input rows for which oneDNN optimises a weight's layout; other numbers work too


def linear(layer: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Apply ``layer`` to the rows of ``x`` (..., in)."""
    rows = LINEAR_PADDING.padded(x.flatten(0, -2))
    return layer(rows)[: x.shape[:-1].numel()].unflatten(0, x.shape[:-1])


class Prepacked(nn.Module):
    """Linear layer for inference, whose bfloat16 weight has oneDNN's layout. A deep copy of it is an `nn.Linear`."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.bias = linear.bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), PACK_BATCH)

    @property
    def weight(self) -> torch.Tensor:
        """Copy of the weight in the usual layout, (out, in)."""
        return self._packed.to_dense()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layer: (..., in) to (..., out)."""
        return linear(self._product, x)

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x.contiguous(), self._packed, self.bias, "none", [], "")

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Linear:
        """Return the original layer, with a copy of its weight."""
        weight = self.weight
        whole = nn.Linear(weight.shape[1], weight.shape[0], self.bias is not None, "meta", weight.dtype)
        whole.weight, whole.bias = nn.Parameter(weight, requires_grad=False), copy.deepcopy(self.bias, memo)
        return whole


def prepack(layers: nn.Module) -> None:
    """Replace bfloat16 linear layers on the CPU by `Prepacked` ones if oneDNN computes their products.

    Layers are replaced one by one, each freed before the next is packed. Quantised layers stay as they are.
    """
    if not onednn_multiplies(torch.bfloat16):
        return
    for parent in [module for module in layers.modules() if type(module) is not nn.Linear]:
        for name in [name for name, _ in parent.named_children()]:
            child = getattr(parent, name)
            if type(child) is nn.Linear and child.weight.dtype == torch.bfloat16 and child.weight.device.type == "cpu":
                setattr(parent, name, Prepacked(child))
