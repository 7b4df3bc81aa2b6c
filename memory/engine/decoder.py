"""The model's own layers, called one at a time with the active rows only."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

from memory.engine.attention import JointPass, Pass
from memory.engine.rope import RopeTables
from memory.engine.spec import ModelSpec


@dataclass
class Decoder:
    """A causal LM taken apart: embed, layers, head."""

    module: PreTrainedModel
    spec: ModelSpec

    def __post_init__(self) -> None:
        base = self.module.model
        self.layers: list[nn.Module] = list(base.layers)
        self.rope = RopeTables(base.rotary_emb, self.layers[0].self_attn, self.spec)
        self.softcap: float | None = getattr(self.module.config, "final_logit_softcapping", None)
        self._identity: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def device(self) -> torch.device:
        return self.module.device

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Hidden states (1, rows, hidden) of ``token_ids`` (rows,), scaled as the family does."""
        return self.module.model.embed_tokens(token_ids[None])

    def layer(self, index: int, hidden: torch.Tensor, state: Pass | JointPass) -> torch.Tensor:
        """Run one decoder layer on the rows of ``state``."""
        embeddings = self._unmoved(hidden.shape[1]) if state.bare else state.angles[self.spec.rope_keys[index]]
        out = self.layers[index](
            hidden,
            attention_mask=None,
            position_ids=None,
            past_key_values=None,
            use_cache=False,
            position_embeddings=embeddings,
            memory_pass=state,
        )
        return out[0] if isinstance(out, tuple) else out

    def run(self, hidden: torch.Tensor, state: Pass | JointPass) -> torch.Tensor:
        """All layers on the same rows."""
        for index in range(self.spec.layers):
            hidden = self.layer(index, hidden, state)
        return hidden

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits (..., vocab) of hidden states after the last layer."""
        logits = self.module.lm_head(self.module.model.norm(hidden))
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap

    def bare_kv(self, index: int, hidden: torch.Tensor, kinds: str = "kv") -> tuple[torch.Tensor, ...]:
        """Per kind ``(kv_heads, rows, head_dim)``: unrotated keys, or values, of layer ``index`` for (1, rows, hidden).

        Norm, projections and k-norm only: no attention, no MLP.
        """
        attention, normed = self.layers[index].self_attn, self.layers[index].input_layernorm(hidden)
        makers = {"k": (attention.k_proj, getattr(attention, "k_norm", None)), "v": (attention.v_proj, None)}
        return tuple(self._heads(project(normed), norm) for project, norm in map(makers.__getitem__, kinds))

    def bare_q(self, index: int, hidden: torch.Tensor) -> torch.Tensor:
        """Unrotated queries ``(heads, rows, head_dim)`` that layer ``index`` makes of (1, rows, hidden)."""
        attention, normed = self.layers[index].self_attn, self.layers[index].input_layernorm(hidden)
        return self._heads(attention.q_proj(normed), getattr(attention, "q_norm", None))

    def _heads(self, projected: torch.Tensor, norm: nn.Module | None) -> torch.Tensor:
        """(heads, rows, head_dim) of (1, rows, heads * head_dim)."""
        parts = projected[0].unflatten(-1, (-1, self.spec.head_dim))
        return (parts if norm is None else norm(parts)).transpose(0, 1)

    def _unmoved(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Identity angles, made anew only when the number of rows changes."""
        if rows not in self._identity:
            self._identity = {rows: self.rope.identity(rows, self.device)}
        return self._identity[rows]
