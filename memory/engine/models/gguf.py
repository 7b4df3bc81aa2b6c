"""GGUF files: each is converted once into a model folder in the user's cache, and loaded from there.

transformers reads the file (packages ``gguf`` and ``accelerate``) and dequantises its tensors. The folder holds them as
float16 in safetensors, with config, tokenizer and ``SHA256SUMS``. Its name has the file's SHA-256, so that a changed
file is converted again. It appears whole or not at all.
"""

from __future__ import annotations

import copy
import logging
import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from keep_agent.errors import CapacityError, ConfigError, ModelError
from keep_agent.files import loading, writing
from memory.engine.models.capacity import WeightSizes, check_capacity
from memory.engine.models.model_spec import check_supported
from memory.files.atomic import create_folder
from memory.files.checksums import CHECKSUMS, digests_of, write_sums

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)
PACKAGES = ("gguf", "accelerate")
DTYPE = torch.float16  # of the converted weights: finer than a quantised block's scale, half of float32's room
PEAK_BYTES = 6  # bytes per parameter while a file is converted: float32, and the result
_UNSAFE = re.compile(r"[^\w.-]+")


def converted(file: Path) -> Path:
    """Return the folder of a GGUF file's model, which is made if it is missing.

    :raises ConfigError: the packages that read GGUF files are not installed
    :raises ModelError: the file is damaged, or its architecture, quantisation or tokenizer is not supported
    :raises CapacityError: too little memory or room on the disk
    """
    (digest,) = digests_of([file]).values()
    folder = models_folder() / f"{_UNSAFE.sub('_', file.stem)}-{digest[:16]}"
    if not (folder / CHECKSUMS).is_file():
        if missing := [name for name in PACKAGES if find_spec(name) is None]:
            raise ConfigError(
                f"{file} is a GGUF file, and {missing[0]} is not installed, with which it is read; install "
                "'keep-agent[gguf]', or give a folder with safetensors weights"
            )
        parameters = _check(file)
        _check_room(folder, parameters * DTYPE.itemsize)
        log.warning("converting %s (%.2f billion parameters), once, into %s", file, parameters / 1e9, folder)
        with writing(folder):
            try:
                _make(file, digest, folder)
            except OSError:
                if not (folder / CHECKSUMS).is_file():  # else another process was faster
                    raise
    return folder


def _make(file: Path, digest: str, folder: Path) -> None:
    with create_folder(folder) as new:
        _convert(file, new)
        if digests_of([file])[file] != digest:
            raise ModelError(f"{file} was changed while it was read; load it again once it is complete")
        write_sums(new / CHECKSUMS, {path.name: digest for path, digest in digests_of(new.iterdir()).items()})


def models_folder() -> Path:
    """Return the folder of converted models in the user's cache; on Linux ``XDG_CACHE_HOME``, else ``~/.cache``."""
    from platformdirs import user_cache_path  # lazy: a memory without such models does not need it

    return user_cache_path("keep-agent") / "models"


def _check(file: Path) -> int:
    """Return the number of a file's parameters, after checks of its quantisation and of the free memory."""
    from gguf import GGUFReader, quants

    with loading(f"GGUF file {str(file)!r}", "fetch it again"):
        reader = GGUFReader(file)
        tensors = [(tensor.name, tensor.tensor_type, int(tensor.n_elements)) for tensor in reader.tensors]
        fields = {name: reader.get_field(name) for name in ("general.architecture", "tokenizer.ggml.tokens")}
    known = {"F32", "F16", *(kind.name for kind in quants._type_traits)}
    odd = [f"{name} in {kind.name}" for name, kind, _ in tensors if kind.name not in known]
    lacking = [*([] if tensors else ["tensors"]), *(name for name, value in fields.items() if value is None)]
    if odd or lacking:
        what = f"has tensors in a quantisation that cannot be read ({odd[0]})" if odd else f"has no {lacking[0]}"
        raise ModelError(f"{file} {what}; fetch the model in another format, such as Q8_0 or safetensors")
    parameters = sum(count for _, _, count in tensors)
    sizes = WeightSizes(parameters, PEAK_BYTES * parameters, "float32, while it is converted,")
    check_capacity(str(file), sizes, torch.device("cpu"))
    return parameters


def _check_room(folder: Path, needed: int) -> None:
    place = next(path for path in folder.parents if path.exists())
    if (free := shutil.disk_usage(place).free) < needed:
        raise CapacityError(
            f"no room for the converted model in {place}: it takes {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are "
            "free; free some, or set XDG_CACHE_HOME to a folder on a larger disk"
        )


def _convert(file: Path, folder: Path) -> None:
    """Write the model of a GGUF file as a Hugging Face folder."""
    remedy = "fetch the model in another format, such as safetensors"
    with loading(f"GGUF file {str(file)!r}", remedy):
        names: dict[str, Any] = {"gguf_file": file.name, "trust_remote_code": False}
        model = AutoModelForCausalLM.from_pretrained(str(file.parent), dtype=torch.float32, **names)
        check_supported(model.config)
        tokenizer = AutoTokenizer.from_pretrained(str(file.parent), **names)
        plain = _plain(model)
    if bad := [name for name, tensor in plain.state_dict().items() if not tensor.isfinite().all()]:
        raise ModelError(f"{file} has values beyond {DTYPE} ({bad[0]}); {remedy}")
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _plain(model: PreTrainedModel) -> PreTrainedModel:
    """Return the dequantised model without a trace of its quantisation."""
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.dtype, config._name_or_path = DTYPE, ""
    with torch.device("meta"):
        plain = type(model)(config)
    state = {name: tensor.to(DTYPE) for name, tensor in model.state_dict().items()}
    plain.load_state_dict(state, assign=True)
    plain.tie_weights()
    plain.generation_config = model.generation_config
    return plain
