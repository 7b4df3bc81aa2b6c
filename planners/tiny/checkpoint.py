"""Checkpoint of planner-tiny: a Hugging Face folder (config, bf16 safetensors, tokenizer) with a training record."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
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
from memory.files.checksums import CHECKSUMS, check_sums, digests_of, read_sums, sha256, write_sums
from memory.files.folder_versions import latest, new_version
from planners.tiny.shape import HISTORY
from planners.tiny.tokenizer import BOS, PAD, UNK, load_tokenizer
from planners.training import packed_attention

TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "pad_token": PAD, "unk_token": UNK,
    "clean_up_tokenization_spaces": False,
}  # fmt: skip
SAYS_GOALS = "says_goals"  # key in config.json of models that write the goal of an instruction before the first skill
WEIGHTS, TOKENIZER = "model.safetensors", "tokenizer.json"
MODEL_FILES = ("config.json", WEIGHTS, TOKENIZER, "tokenizer_config.json")
STATE_CHECKSUMS = "SHA256SUMS.training"  # checksums of files that only the trainer reads
CHECKSUM_FILES = (CHECKSUMS, STATE_CHECKSUMS)
RESTORE = "restore it, or train again in another folder"


def build(config: Qwen2Config) -> Qwen2ForCausalLM:
    """Build an untrained model with packed attention."""
    return Qwen2ForCausalLM._from_config(config, attn_implementation=packed_attention.NAME, dtype=torch.float32)


def new_checkpoint(folder: Path, step: int) -> AbstractContextManager[Path]:
    """Open a folder for `write_planner`; on exit it becomes the latest checkpoint, unless there was an error."""
    if latest(folder) == folder and (folder / HISTORY).exists():
        _convert_old_checkpoint(folder)
    return new_version(folder, f"step-{step}")


def write_planner(
    model: Qwen2ForCausalLM,
    tokenizer: Tokenizer,
    history: Mapping[str, object],
    folder: Path,
    more: Mapping[str, Mapping[str, torch.Tensor]] = MappingProxyType({}),
    weights: Mapping[str, torch.Tensor] = MappingProxyType({}),
) -> None:
    """Write weights (bf16), config, tokenizer, training record, and tensor files (``more``: tensors by file name).

    :param weights: tensors that replace those of the model, by name
    """
    write_files(folder, CHECKSUMS, _model_contents(model, {**model.state_dict(), **weights}, tokenizer))
    write_state(folder, history, more)


def write_state(folder: Path, history: Mapping[str, object], more: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
    """Write the files that only the trainer reads: the training record, and tensors by file name."""
    state = chain([(HISTORY, json_bytes(history))], ((name, save(dict(tensors))) for name, tensors in more.items()))
    write_files(folder, STATE_CHECKSUMS, state)


def write_files(folder: Path, sums: str, contents: Iterable[tuple[str, bytes]]) -> None:
    """Write files by name and content, and their checksums into the file ``sums``."""
    digests = {}
    for name, content in contents:
        (folder / name).write_bytes(content)
        digests[name] = sha256(content)
    write_sums(folder / sums, digests)


def _convert_old_checkpoint(folder: Path) -> None:
    """Copy the checkpoint of an older release, whose files lie in ``folder`` itself, into a first version folder."""
    with new_version(folder, "before") as new:
        for file in folder.iterdir():
            if file.is_file() and file.suffix in (".json", ".safetensors"):
                shutil.copy2(file, new)
        digests = {file.name: digest for file, digest in digests_of(new.iterdir()).items()}
        write_sums(new / CHECKSUMS, {name: digest for name, digest in digests.items() if name in MODEL_FILES})
        write_sums(new / STATE_CHECKSUMS, {name: digest for name, digest in digests.items() if name not in MODEL_FILES})


def _model_contents(
    model: Qwen2ForCausalLM, weights: Mapping[str, torch.Tensor], tokenizer: Tokenizer
) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file of a Hugging Face folder."""
    state = {name: tensor.detach().to("cpu", torch.bfloat16).contiguous() for name, tensor in weights.items()}
    state.pop("lm_head.weight", None)  # tied to the embedding
    values = model.config.to_dict() | {"architectures": ["Qwen2ForCausalLM"], "dtype": "bfloat16"}
    values.pop("_attn_implementation", None)
    values.pop("attn_implementation", None)
    yield "config.json", json_bytes(values)
    yield WEIGHTS, save(state, {"format": "pt"})
    yield TOKENIZER, tokenizer.to_str(pretty=True).encode()
    yield "tokenizer_config.json", json_bytes(TOKENIZER_CONFIG)


def json_bytes(value: Mapping[str, object]) -> bytes:
    """Return the content of a JSON file."""
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def latest_checkpoint(folder: Path) -> Path | None:
    """Return the folder of the latest checkpoint, None if there is none. `load_planner` checks the model's files.

    A run of an older release has no version folders, and no checksums of the trainer's files.

    :raises ModelError: a file is in no list of checksums, or a file that only the trainer reads is missing or damaged
    """
    version = latest(folder)
    if version == folder and not (folder / HISTORY).exists():
        return None
    known = {file.name for name in CHECKSUM_FILES for file in read_sums(version / name)} | set(CHECKSUM_FILES)
    odd = sorted({file.name for file in version.iterdir()} - known)
    if version != folder and odd:
        raise ModelError(f"{version / odd[0]} has no checksum in its folder; restore the folder, or remove the file")
    check_sums(version / STATE_CHECKSUMS)
    return version


def load_planner(folder: Path) -> tuple[Qwen2ForCausalLM, Tokenizer, dict]:
    """Load (model with packed attention in float32, tokenizer, training record), as `write_planner` wrote them.

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


def weights_hash(folder: Path, name: str = WEIGHTS) -> str:
    """Return the SHA-256 of a checkpoint's weights, in the file ``name``. Raises ModelError if there are none."""
    file = latest(folder) / name
    with loading(file, RESTORE):
        return digests_of([file])[file]


def read_tensors(file: Path) -> dict[str, torch.Tensor]:
    """Read the tensors of a file by name. Raises ModelError for a damaged file."""
    with loading(file, RESTORE):
        return tensorfile.read_tensors(file)


def load_weights(model: Qwen2ForCausalLM, state: dict[str, torch.Tensor], where: Path) -> None:
    """Load all tensors of a model. Raises ModelError, naming ``where``, for missing, surplus or misshapen tensors."""
    try:
        result = model.load_state_dict({name: tensor.float() for name, tensor in state.items()}, strict=False)
    except RuntimeError as error:  # raised for a tensor of another shape
        raise ModelError(f"weights in {str(where)!r} do not fit its config.json ({error}); {RESTORE}") from error
    odd = sorted({*result.missing_keys, *result.unexpected_keys} - {"lm_head.weight"})  # tied to the embedding
    if odd:
        raise ModelError(f"weights in {str(where)!r} do not fit its config.json, for example {odd[0]}; {RESTORE}")
    model.tie_weights()
