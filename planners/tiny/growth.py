"""Growth of a trained planner: embedding rows for new tokens, and new layers initialised as identities."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from tokenizers import Tokenizer
from transformers import Qwen2Config, Qwen2ForCausalLM

from keep_agent.errors import ModelError
from planners.tiny.checkpoint import build


@torch.no_grad()
def add_embeddings(model: Qwen2ForCausalLM, tokenizer: Tokenizer, new: Mapping[str, Sequence[int]]) -> None:
    """Add embedding rows, in place, for new tokens of the tokenizer.

    :param new: each new token, with the ids of the pieces that spelled it. The new row is (m + n) / sqrt(2): m is the
        mean of the pieces' rows; n, noise with the old rows' standard deviation, makes rows distinct for look-ups
    """
    rows = -(-tokenizer.get_vocab_size() // 64) * 64
    old = model.get_input_embeddings().weight.clone()  # (rows, hidden)
    if rows > len(old):
        model.resize_token_embeddings(rows, mean_resizing=False)
    weight = model.get_input_embeddings().weight
    for name, pieces in new.items():
        noise = torch.randn(weight.shape[1]) * old.std()
        weight[tokenizer.token_to_id(name)] = (old[list(pieces)].mean(0) + noise) / 2**0.5
    model.tie_weights()


@torch.no_grad()
def deepen(model: Qwen2ForCausalLM, layers: int) -> Qwen2ForCausalLM:
    """Return a model of ``layers`` layers that computes the same function (block expansion, arXiv 2401.02415).

    Each new layer is a copy of the layer before it with output projections set to zero. New layers are spread evenly
    behind the first quarter of the layers. Raises ModelError for fewer layers than the model has.
    """
    depth, config = len(model.model.layers), copy.deepcopy(model.config)
    if layers < depth:
        raise ModelError(f"a model of {depth} layers cannot be deepened to {layers}; give {depth} or more")
    first, added = depth // 4, layers - depth
    copies = [first + (number + 1) * (depth - first) // (added + 1) for number in range(added)]
    sources = sorted([*((layer, False) for layer in range(depth)), *((layer, True) for layer in copies)])
    config.num_hidden_layers, config.layer_types = layers, None
    deeper = build(Qwen2Config.from_dict(config.to_dict()))
    state = {name: value for name, value in model.state_dict().items() if ".layers." not in name}
    for number, (source, is_copy) in enumerate(sources):
        for name, value in model.model.layers[source].state_dict().items():
            silent = is_copy and name in ("self_attn.o_proj.weight", "mlp.down_proj.weight")
            state[f"model.layers.{number}.{name}"] = torch.zeros_like(value) if silent else value.clone()
    deeper.load_state_dict(state)
    deeper.tie_weights()
    return deeper
