"""Induction-seeded initialisation, from which small models learn memory look-ups on a CPU.

In layer 0, almost only biases and RoPE make the first three heads attend o = 1, 2 and 3 positions back. Head o adds
the token that it attends to, rotated by a matrix R_o, to the residual stream. In later layers, the keys of head o undo
this rotation. So a query matches the rows o positions after an equal token, and the head copies the tokens of these
rows: "find the word, copy the next". Training only has to sharpen these look-ups. From a standard initialisation, the
model did not learn them in feasible CPU time. The model needs biases on q and k, as in Qwen2, and as many KV heads as
heads.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import Qwen2ForCausalLM

from keep_agent.errors import ConfigError
from planners.tiny.shape import SEEDED_HEADS

OFFSETS = tuple(range(1, SEEDED_HEADS + 1))


def _orthogonal(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(rows, columns, generator=generator))[0]


def _offset_bias(offset: int, inverse_frequencies: torch.Tensor, head_dim: int, peak: float) -> list[torch.Tensor]:
    """Return (q, k) biases ``(head_dim,)`` whose product after RoPE peaks ``offset`` positions before the query."""
    pairs = head_dim // 4  # number of RoPE's dimension pairs that have a bias
    height = (peak / pairs * head_dim**0.5) ** 0.5
    k, q = torch.zeros(head_dim), torch.zeros(head_dim)
    k[:pairs] = height
    angle = -offset * inverse_frequencies[:pairs]
    q[:pairs], q[head_dim // 2 : head_dim // 2 + pairs] = height * torch.cos(angle), height * torch.sin(angle)
    return [q, k]


@torch.no_grad()
def seed_induction(
    model: Qwen2ForCausalLM, seed: int = 0, write: float = 0.15, copy: float = 0.15, peak: float = 14.0
) -> None:
    """Overwrite the first heads of every layer and the embedding in place, but no other weights.

    ``write`` scales the heads' outputs in layer 0, ``copy`` in later layers. ``peak``: greatest logit in layer 0.
    """
    config = model.config
    hidden, heads = config.hidden_size, config.num_attention_heads
    if config.num_key_value_heads != heads or heads < len(OFFSETS):
        raise ConfigError(f"seeding needs {len(OFFSETS)} or more heads, each with its own KV head; heads={heads}")
    generator = torch.Generator().manual_seed(seed)
    head_dim = hidden // heads
    base = config.rope_parameters["rope_theta"]
    inverse_frequencies = 1.0 / base ** (torch.arange(0, head_dim, 2).float() / head_dim)
    model.model.embed_tokens.weight.copy_(torch.randn(config.vocab_size, hidden, generator=generator) * hidden**-0.5)
    rotations = [_orthogonal(hidden, hidden, generator) for _ in OFFSETS]
    # one projection per head: for values in layer 0; for queries and, rotated, for keys in later layers
    readers = [_orthogonal(hidden, head_dim, generator).T for _ in OFFSETS]
    for number, layer in enumerate(model.model.layers):
        attention = layer.self_attn
        for head, offset in enumerate(OFFSETS):
            part = slice(head * head_dim, (head + 1) * head_dim)
            if number == 0:
                _seed_writer(attention, part, readers[head], rotations[head] * write)
                q, k = _offset_bias(offset, inverse_frequencies, head_dim, peak)
                attention.q_proj.bias[part], attention.k_proj.bias[part] = q, k
            else:
                value = _orthogonal(hidden, head_dim, generator).T
                attention.q_proj.weight[part] = readers[head]
                attention.k_proj.weight[part] = (rotations[head] @ readers[head].T).T
                attention.v_proj.weight[part] = value
                attention.o_proj.weight[:, part] = value.T * copy


def _seed_writer(attention: nn.Module, part: slice, reader: torch.Tensor, rotation: torch.Tensor) -> None:
    attention.q_proj.weight[part] *= 0.1
    attention.k_proj.weight[part] *= 0.1
    attention.v_proj.weight[part] = reader
    attention.o_proj.weight[:, part] = rotation @ reader.T
