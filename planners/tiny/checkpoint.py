"""planner-tiny on disk: a plain Hugging Face folder (config, bf16 safetensors, tokenizer) plus how it was made."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors.torch import save
from tokenizers import Tokenizer
from transformers import Qwen2Config, Qwen2ForCausalLM

from keep_agent.errors import ModelError
from keep_agent.files import loading
from memory.files import tensor_file as tensorfile
from memory.files.atomic import alone
from memory.files.checksums import CHECKSUMS, check_sums, digests_of, read_sums, sha256, write_sums
from memory.files.folder_versions import latest, new_version
from planners.tiny.tokenizer import BOS, PAD, UNK, load_tokenizer
from planners.training import packed_attention
from planners.training.choices import HISTORY

BUNDLED = Path(__file__).parents[1] / "planner_tiny"
LONG = Path(__file__).parents[1] / "planner_tiny_long"  # has read transcripts of up to 3,800 tokens
PLANNERS = MappingProxyType({"planner-tiny": BUNDLED, "planner-tiny-long": LONG})
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": BOS,
    "pad_token": PAD,
    "unk_token": UNK,
    "clean_up_tokenization_spaces": False,
}
SAYS_GOALS = "says_goals"  # in config.json: it has learned to say first what an instruction asks for
WEIGHTS, TOKENIZER = "model.safetensors", "tokenizer.json"
MODEL = ("config.json", WEIGHTS, TOKENIZER, "tokenizer_config.json")
STATE_CHECKSUMS = "SHA256SUMS.training"  # of what only the trainer reads
SUMS = (CHECKSUMS, STATE_CHECKSUMS)
RESTORE = "restore it, or train anew in another folder"


def build(config: Qwen2Config) -> Qwen2ForCausalLM:
    """An untrained model whose attention is the packed one."""
    return Qwen2ForCausalLM._from_config(config, attn_implementation=packed_attention.NAME, dtype=torch.float32)


def training(folder: Path) -> AbstractContextManager[None]:
    """Hold a planner's folder for the one that trains it. Raises ConfigError while another process does."""
    return alone(folder)


def new_checkpoint(folder: Path, step: int) -> AbstractContextManager[Path]:
    """A folder for `write_planner`, which becomes a trainer's latest checkpoint whole, or the old one stays."""
    if latest(folder) == folder and (folder / HISTORY).exists():
        _adopt(folder)
    return new_version(folder, f"step-{step}")


def write_planner(
    model: Qwen2ForCausalLM,
    tokenizer: Tokenizer,
    history: dict,
    folder: Path,
    more: Mapping[str, Mapping[str, torch.Tensor]] = MappingProxyType({}),
) -> None:
    """Write weights (bf16), config, tokenizer and training record, and tensor files ``more`` by name, into a folder.

    Checksums of what makes a model are in one list, those of what only the trainer reads in another.
    """
    _write(folder, CHECKSUMS, _model_contents(model, tokenizer))
    state = chain([(HISTORY, _json(history))], ((name, save(dict(tensors))) for name, tensors in more.items()))
    _write(folder, STATE_CHECKSUMS, state)


def _write(folder: Path, sums: str, contents: Iterable[tuple[str, bytes]]) -> None:
    digests = {}
    for name, content in contents:
        (folder / name).write_bytes(content)
        digests[name] = sha256(content)
    write_sums(folder / sums, digests)


def _adopt(folder: Path) -> None:
    """Make a checkpoint that stands in the folder itself, as it did before there were versions, the first version."""
    with new_version(folder, "before") as new:
        for file in folder.iterdir():
            if file.is_file() and file.suffix in (".json", ".safetensors"):
                shutil.copy2(file, new)
        found = {file.name: digest for file, digest in digests_of(new.iterdir()).items()}
        write_sums(new / CHECKSUMS, {name: digest for name, digest in found.items() if name in MODEL})
        write_sums(new / STATE_CHECKSUMS, {name: digest for name, digest in found.items() if name not in MODEL})


def _model_contents(model: Qwen2ForCausalLM, tokenizer: Tokenizer) -> Iterator[tuple[str, bytes]]:
    """The files of a Hugging Face folder, one after another, by name."""
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


def latest_checkpoint(folder: Path) -> Path | None:
    """Where the latest checkpoint of a trainer's folder lies, checked file by file; None if there is none.

    Folders from before there were versions have checksums of the model alone.

    :raises ModelError: a file is missing, damaged, or of another checkpoint
    """
    version = latest(folder)
    if version == folder and not (folder / HISTORY).exists():
        return None
    listed = {file.name for name in SUMS for file in read_sums(version / name)} | set(SUMS)
    odd = sorted({file.name for file in version.iterdir()} - listed)
    if version != folder and odd:
        raise ModelError(f"{version / odd[0]} is in no list of checksums there; restore the folder, or remove the file")
    check_sums(version / STATE_CHECKSUMS)
    return version


def load_planner(folder: Path) -> tuple[Qwen2ForCausalLM, Tokenizer, dict]:
    """(model with packed attention in float32, tokenizer, training record) from a folder written by `write_planner`.

    :raises ModelError: a file is missing or damaged
    """
    folder = latest(folder)
    check_sums(folder / CHECKSUMS)
    with loading(f"planner weights from {str(folder)!r}", RESTORE):
        tokenizer = load_tokenizer(folder / TOKENIZER)
        history = json.loads((folder / HISTORY).read_text())
        model = build(Qwen2Config.from_dict(json.loads((folder / "config.json").read_text())))
    load_weights(model, read_tensors(folder / WEIGHTS), folder)
    return model, tokenizer, history


def weights_of(folder: Path) -> str:
    """SHA-256 of the weights that `load_planner` reads. Raises ModelError where there are none."""
    file = latest(folder) / WEIGHTS
    with loading(file, RESTORE):
        return digests_of([file])[file]


def read_tensors(file: Path) -> dict[str, torch.Tensor]:
    """Tensors of a file by name. Raises ModelError for a damaged one."""
    with loading(file, RESTORE):
        return tensorfile.read_tensors(file)


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
