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
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from keep_agent.errors import CapacityError, ConfigError, ModelError
from keep_agent.files import loading, writing
from memory.engine.models.capacity import WeightSizes, check_capacity
from memory.engine.models.model_spec import check_supported
from memory.files.atomic import SUFFIX, create_folder, waiting_lock
from memory.files.checksums import CHECKSUMS, digests_of, write_sums

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)
PACKAGES = ("gguf", "accelerate")
DTYPE = torch.float16  # of the converted weights: finer than a quantised block's scale, half of float32's room
PEAK_BYTES = 6  # bytes per parameter while a file is converted: float32, and the result
ARCHITECTURES = ("llama", "qwen2", "qwen3")  # compared with safetensors; Mistral's files are of architecture llama
SPLITS, ROPE_FACTORS = "split.count", "rope_freqs.weight"
OTHER_FORMAT = "fetch the model in another format, such as safetensors"
_UNSAFE = re.compile(r"[^\w.-]+")


def converted(file: Path, digest: str | None = None) -> Path:
    """Return the folder of a GGUF file's model, which is made if it is missing.

    :param digest: SHA-256 of the file, if it is known
    :raises ConfigError: the packages that read GGUF files are not installed
    :raises ModelError: the file is damaged, or its architecture, quantisation or tokenizer is not supported
    :raises CapacityError: too little memory or room on the disk
    """
    digest = digest or digests_of([file])[file]
    folder = models_folder() / f"{_UNSAFE.sub('_', file.stem)}-{digest[:16]}"
    if (folder / CHECKSUMS).is_file():
        return folder
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise ConfigError(
            f"reading the GGUF file {file} needs the package {missing[0]}; install 'keep-agent[gguf]', or give a "
            "folder with safetensors weights"
        )
    parameters = _check(file)
    _check_room(folder, parameters * DTYPE.itemsize)
    with waiting_lock(folder.parent):
        if not (folder / CHECKSUMS).is_file():  # else another process was faster
            for abandoned in folder.parent.glob(f".{folder.name}.*{SUFFIX}"):  # of a killed process
                shutil.rmtree(abandoned)
            log.warning("converting %s (%.2f billion parameters), once, into %s", file, parameters / 1e9, folder)
            _make(file, digest, folder)
    return folder


def _make(file: Path, digest: str, folder: Path) -> None:
    with writing(folder), create_folder(folder) as new:
        _convert(file, new)
        if digests_of([file])[file] != digest:
            raise ModelError(f"{file} was changed while it was read; load it again once it is complete")
        write_sums(new / CHECKSUMS, {path.name: digest for path, digest in digests_of(new.iterdir()).items()})


def models_folder() -> Path:
    """Return the folder of converted models in the user's cache; on Linux ``XDG_CACHE_HOME``, else ``~/.cache``."""
    from platformdirs import user_cache_path  # lazy: a memory without such models does not need it

    return user_cache_path("keep-agent") / "models"


def _check(file: Path) -> int:
    """Return the number of a file's parameters, after checks of its content and of the free memory."""
    from gguf import GGUFReader, quants

    with loading(f"GGUF file {str(file)!r}", "fetch it again"):
        reader = GGUFReader(file)
        tensors = [(tensor.name, tensor.tensor_type.name, int(tensor.n_elements)) for tensor in reader.tensors]
        fields = {name: field.contents() for name, field in reader.fields.items() if field.types}
    kind, known = fields.get("general.architecture"), {"F32", "F16", *(kind.name for kind in quants._type_traits)}
    problems = [
        *(f"has no {name}" for name in ("general.architecture", "tokenizer.ggml.tokens") if name not in fields),
        *([] if kind in ARCHITECTURES else [f"is of architecture {kind!r}, and only {', '.join(ARCHITECTURES)} work"]),
        *([] if tensors else ["has no tensors"]),
        *([f"is one of {fields[SPLITS]} parts, which must be merged"] if fields.get(SPLITS, 1) > 1 else []),
        *(f"scales RoPE by {fields[name]}, which cannot be read from a GGUF file" for name in fields
          if name.endswith("rope.scaling.type") and fields[name] != "none"),
        *(f"has {name}, which cannot be read from a GGUF file" for name, *_ in tensors if name == ROPE_FACTORS),
        *(f"has tensors in a quantisation that cannot be read ({name} in {kind})" for name, kind, _ in tensors
          if kind not in known),
    ]  # fmt: skip
    if problems:
        raise ModelError(f"{file} {problems[0]}; {OTHER_FORMAT}")
    parameters = sum(count for *_, count in tensors)
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
    """Write the model of a GGUF file as a Hugging Face folder.

    transformers sees a folder with nothing but the file: beside it, it would also load an adapter or another file.
    """
    with loading(f"GGUF file {str(file)!r}", OTHER_FORMAT), TemporaryDirectory(prefix="keep-agent-") as view:
        link = Path(view) / "model.gguf"
        link.symlink_to(file.absolute())
        name = str(link)  # a relative name would be looked up in the current folder first
        check_supported(AutoConfig.from_pretrained(view, gguf_file=name, trust_remote_code=False))
        model, report = AutoModelForCausalLM.from_pretrained(
            view, gguf_file=name, trust_remote_code=False, dtype=torch.float32, output_loading_info=True,
            ignore_mismatched_sizes=True,
        )  # fmt: skip
        tokenizer = AutoTokenizer.from_pretrained(view, gguf_file=name, trust_remote_code=False)
        plain = _plain(model)
    missing = sorted([*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])])
    if missing:  # transformers fills them with random numbers
        raise ModelError(f"{file} lacks {missing[0]}, or has it in another shape; {OTHER_FORMAT}")
    if bad := [name for name, tensor in plain.state_dict().items() if not tensor.isfinite().all()]:
        raise ModelError(f"{file} has values beyond {DTYPE} ({bad[0]}); {OTHER_FORMAT}")
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
