"""planner-tiny on disk: a plain Hugging Face folder (config, bf16 safetensors, tokenizer) plus how it was made."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors.torch import load_file, save
from tokenizers import Tokenizer
from transformers import Qwen2Config, Qwen2ForCausalLM

from keep_agent.errors import ModelError
from memory.disk.atomic import alone, clean, replacing_together
from planners import packed_attention
from planners.tokenizer import BOS, PAD, UNK, load_tokenizer

BUNDLED = Path(__file__).parent / "planner_tiny"
LONG = Path(__file__).parent / "planner_tiny_long"  # has read transcripts of up to 3,800 tokens
PLANNERS = MappingProxyType({"planner-tiny": BUNDLED, "planner-tiny-long": LONG})
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": BOS,
    "pad_token": PAD,
    "unk_token": UNK,
    "clean_up_tokenization_spaces": False,
}
SUMMED = ("config.json", "model.safetensors", "tokenizer.json")
SAYS_GOALS = "says_goals"  # in config.json: it has learned to say first what an instruction asks for
WEIGHTS, TOKENIZER, HISTORY = "model.safetensors", "tokenizer.json", "training.json"


@dataclass(frozen=True, slots=True)
class Shape:
    """Deep and thin: layer 0 is always computed in full, so a shallow model could not show what recomputation saves."""

    hidden: int = 192
    layers: int = 12
    heads: int = 6
    intermediate: int = 512
    positions: int = 4096

    @classmethod
    def of(cls, config: Qwen2Config) -> Shape:
        """The shape of an existing model."""
        return cls(
            config.hidden_size,
            config.num_hidden_layers,
            config.num_attention_heads,
            config.intermediate_size,
            config.max_position_embeddings,
        )

    def config(self, tokenizer: Tokenizer) -> Qwen2Config:
        vocab = -(-tokenizer.get_vocab_size() // 64) * 64
        return Qwen2Config(
            vocab_size=vocab,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.heads,
            max_position_embeddings=self.positions,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            bos_token_id=tokenizer.token_to_id(BOS),
            eos_token_id=None,
            pad_token_id=tokenizer.token_to_id(PAD),
        )


def build(config: Qwen2Config) -> Qwen2ForCausalLM:
    """An untrained model whose attention is the packed one."""
    return Qwen2ForCausalLM._from_config(config, attn_implementation=packed_attention.NAME, dtype=torch.float32)


def training(folder: Path) -> AbstractContextManager[None]:
    """Hold a planner's folder for the one that trains it. Raises ConfigError while another process does."""
    return alone(folder)


def save_planner(
    model: Qwen2ForCausalLM,
    tokenizer: Tokenizer,
    history: dict,
    folder: Path,
    more: Mapping[str, Mapping[str, torch.Tensor]] = MappingProxyType({}),
) -> None:
    """Write weights (bf16), config, tokenizer and training record, and tensor files ``more`` by name.

    All are written beside the old ones first and then renamed in a row, the training record last: it is what says
    that there is a checkpoint.
    """
    clean(folder)  # of what a killed trainer was about to write
    sums = ""
    with replacing_together() as begin:
        for name, content in _contents(model, tokenizer, more):
            begin(folder / name).write(content)
            if name in SUMMED:
                sums += f"{hashlib.sha256(content).hexdigest()}  {name}\n"
        begin(folder / "SHA256SUMS").write(sums.encode())
        begin(folder / HISTORY).write(_json(history))


def _contents(
    model: Qwen2ForCausalLM, tokenizer: Tokenizer, more: Mapping[str, Mapping[str, torch.Tensor]]
) -> Iterator[tuple[str, bytes]]:
    """What is in the files, one after another, by name."""
    for name, tensors in more.items():
        yield name, save(dict(tensors))
    state = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()
    }
    state.pop("lm_head.weight", None)  # tied to the embedding
    config = model.config.to_dict() | {"architectures": ["Qwen2ForCausalLM"], "dtype": "bfloat16"}
    config.pop("_attn_implementation", None)
    config.pop("attn_implementation", None)
    yield "config.json", _json(config)
    yield WEIGHTS, save(state, {"format": "pt"})
    yield TOKENIZER, tokenizer.to_str(pretty=True).encode()
    yield "tokenizer_config.json", _json(TOKENIZER_CONFIG)


def _json(value: dict) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def load_planner(folder: Path) -> tuple[Qwen2ForCausalLM, Tokenizer, dict]:
    """(model with packed attention in float32, tokenizer, training record) from a folder written by `save_planner`."""
    try:
        tokenizer = load_tokenizer(folder / TOKENIZER)
        config = Qwen2Config.from_dict(json.loads((folder / "config.json").read_text()))
        history = json.loads((folder / HISTORY).read_text())
        state = load_file(folder / WEIGHTS)
    except Exception as error:  # tokenizers and safetensors raise bare exceptions of their own
        raise ModelError(
            f"cannot load planner weights from {str(folder)!r} ({error}); train anew or restore the folder"
        ) from error
    model = build(config)
    load_weights(model, state, folder)
    return model, tokenizer, history


@torch.no_grad()
def widen(model: Qwen2ForCausalLM, tokenizer: Tokenizer, new: Mapping[str, Sequence[int]]) -> None:
    """Make room in the embedding for tokens that the tokenizer was extended by, in place.

    ``new``: ids of each one's pieces. It starts halfway between their mean and noise of the usual size: look-ups by
    content need names that differ.
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
    """A model of ``layers`` layers that computes the same: copies of layers, spread over those behind the first
    quarter, whose outputs are zero (block expansion, arXiv 2401.02415). Raises ModelError for fewer layers.
    """
    depth, config = len(model.model.layers), copy.deepcopy(model.config)
    if layers < depth:
        raise ModelError(f"a model of {depth} layers cannot be made into one of {layers}; layers can only be added")
    first = depth // 4
    steps = range(layers - depth)
    copied = [first + (number + 1) * (depth - first) // (len(steps) + 1) for number in steps]
    sources = sorted([*((layer, False) for layer in range(depth)), *((layer, True) for layer in copied)])
    config.num_hidden_layers, config.layer_types = layers, None
    deeper = build(Qwen2Config.from_dict(config.to_dict()))
    rest = {name: value for name, value in model.state_dict().items() if ".layers." not in name}
    state = dict(rest)
    for number, (source, new) in enumerate(sources):
        for name, value in model.model.layers[source].state_dict().items():
            silent = new and name in ("self_attn.o_proj.weight", "mlp.down_proj.weight")
            state[f"model.layers.{number}.{name}"] = torch.zeros_like(value) if silent else value.clone()
    deeper.load_state_dict(state)
    deeper.tie_weights()
    return deeper


def load_weights(model: Qwen2ForCausalLM, state: dict[str, torch.Tensor], where: Path) -> None:
    """Fill a model with exactly the tensors it has; raises `ModelError` naming ``where`` they came from."""
    try:
        found = model.load_state_dict({name: tensor.float() for name, tensor in state.items()}, strict=False)
    except RuntimeError as error:  # another shape
        raise ModelError(f"weights in {str(where)!r} do not fit its config.json ({error}); train anew") from error
    odd = sorted({*found.missing_keys, *found.unexpected_keys} - {"lm_head.weight"})  # tied to the embedding
    if odd:
        raise ModelError(f"weights in {str(where)!r} do not fit its config.json, first {odd[0]}; train anew")
    model.tie_weights()
