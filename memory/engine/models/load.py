"""Model loader for known families with safetensors weights. It first checks that a model fits into memory."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, StrictDataclassError
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
)

from keep_agent.errors import ConfigError, ModelError, check_choice
from keep_agent.files import LOAD_LOCK, loading, reason
from memory.config.choices import DTYPES, INITS
from memory.engine.attention.function import ATTENTION_NAME
from memory.engine.cpu.allocator import return_freed_memory
from memory.engine.models.adapter import adapter_files, merge_adapter
from memory.engine.models.capacity import WeightSizes, check_capacity
from memory.engine.models.gguf import converted
from memory.engine.models.model_files import GENERATION, ModelFiles, model_files
from memory.engine.models.model_path import GGUF, check_model_path, refuse_adapter
from memory.engine.models.model_shapes import SHAPES
from memory.engine.models.model_spec import ModelSpec, check_supported, make_spec
from memory.engine.models.packaged import PACKAGED, hub_name
from memory.engine.models.quantized_weights import Packing, dtype_name, find_packing, run_packed_layers
from memory.engine.transformers.decoder import Decoder, prepack
from memory.files.folder_versions import latest

IGNORED_TENSORS = (  # parts of names of tensors that do not change the model's output
    ".rotary_emb.",  # computed from the config
    ".k_scale", ".v_scale",  # scales of an 8-bit KV cache; the engine computes its own
    ".v_head.", ".mtp.",  # further heads: reward, multi-token prediction
)  # fmt: skip


@dataclass(frozen=True)
class LoadedModel:
    """Model that the engine owns, and the files that it was loaded from (None for random weights)."""

    name: str
    decoder: Decoder
    files: ModelFiles | None = None
    adapter: ModelFiles | None = None

    @property
    def folder(self) -> Path | None:
        return self.files.folder if self.files else None

    @property
    def spec(self) -> ModelSpec:
        return self.decoder.spec

    @property
    def module(self) -> PreTrainedModel:
        return self.decoder.module


def load_model(
    name_or_path: str | Path, dtype: str | torch.dtype = "bfloat16", device: str | torch.device = "cpu",
    init: str = "pretrained", seed: int = 0, quantization: str | None = None, adapter: str | Path | None = None,
) -> LoadedModel:  # fmt: skip
    """Load ``name_or_path``: a folder, a GGUF file, a hub name, or a model that an installed package ships.

    With ``init="random"`` it may also be a named shape or a config.json.

    :param adapter: folder of a LoRA adapter (PEFT), which is merged into the weights
    :param quantization: ``"bnb-4bit"`` or ``"bnb-8bit"`` packs the weights of a full-precision checkpoint while they
        are read; AWQ, GPTQ and bitsandbytes checkpoints are packed already
    :raises ModelError: unsupported family, missing or corrupt weights
    :raises CapacityError: the model does not fit into the device's memory
    :raises ConfigError: an unknown setting, or quantised weights whose package is not installed
    """
    name, dtype, device = str(name_or_path), parse_dtype(dtype), torch.device(device)
    check_choice("model.init", init, INITS)
    with loading(f"model {name!r}", "fetch or build it again, or check its config.json"), return_freed_memory():
        if init == "pretrained":
            return _pretrained(name, dtype, device, quantization, Path(adapter) if adapter else None)
        if adapter:
            raise ConfigError(f"model.adapter={adapter} is for pretrained weights; use model.init=pretrained.")
        config = AutoConfig.for_model(**SHAPES[name]) if name in SHAPES else _config(name)
        if find_packing(name, config, quantization):
            raise ConfigError(f"model {name!r}: random weights are not quantised; use model.init=pretrained.")
        return from_config(config, dtype, str(device), seed, name)


def from_config(
    config: PretrainedConfig, dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0,
    name: str = "random",
) -> LoadedModel:  # fmt: skip
    """Make a model with random weights of any supported configuration; equal seeds give equal weights."""
    config, where = _copy_config(config), torch.device(device)
    check_capacity(name, _weights(_skeleton(config), dtype), where)
    with LOAD_LOCK, torch.random.fork_rng([where] if where.type == "cuda" else []), where:
        torch.manual_seed(seed)
        module = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=ATTENTION_NAME)
    return _wrap(module, name, f"random:{seed}:{where.type}")


def _wrap(
    module: PreTrainedModel, name: str, revision: str, files: ModelFiles | None = None,
    adapter: ModelFiles | None = None,
) -> LoadedModel:  # fmt: skip
    """Make the `LoadedModel` of a module with the engine's attention; ``revision`` names its weights."""
    module.eval().requires_grad_(False)
    key = "+".join(part.key for part in (files, adapter) if part)
    spec = make_spec(module, revision, key)
    prepack(module.model.layers)
    return LoadedModel(name, Decoder(module, spec), files, adapter)


def parse_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """Return ``"bfloat16"`` or ``torch.bfloat16`` as a torch dtype."""
    if isinstance(dtype, torch.dtype):
        return dtype
    check_choice("model.dtype", dtype, DTYPES)
    return getattr(torch, dtype)


def _pretrained(
    name: str, dtype: torch.dtype, device: torch.device, quantization: str | None, folder: Path | None
) -> LoadedModel:
    adapter = adapter_files(latest(folder)) if folder else None  # checked first: a base model can take minutes
    module, files = read_module(name, dtype, device, quantization)
    if adapter is None:
        return _wrap(module, name, files.weights_key, files)
    if getattr(module.config, "quantization_config", None):
        raise ConfigError(
            f"model.adapter={folder} cannot be merged into the quantised weights of {name!r}; load the model in full "
            "precision, or merge the adapter first and quantise the result"
        )
    merged = merge_adapter(module, adapter, hub_name(name))
    adapter.check_unchanged()
    return _wrap(merged, name, f"{files.weights_key}+{adapter.key}", files, adapter)


def read_module(
    name: str, dtype: torch.dtype, device: torch.device, quantization: str | None = None,
    attention: str = ATTENTION_NAME,
) -> tuple[PreTrainedModel, ModelFiles]:  # fmt: skip
    """Read a pretrained model as transformers' module with the ``attention`` function, and its hashed files."""
    if name in SHAPES and not Path(name).exists():
        raise ModelError(f"{name!r} names a shape without weights; use model.init=random, or a folder or hub name.")
    name = _resolved(name)
    config = _copy_config(_config(name))
    packing, skeleton = find_packing(name, config, quantization), _skeleton(config)
    if packing:
        packing.check(name, dtype, device)
        packing.check_layers(name, skeleton)
    check_capacity(name, _weights(skeleton, dtype, packing), device)
    folder = _folder(name)
    refuse_adapter(folder)
    files = model_files(folder)
    with files.view() as view:
        module, report = _read(view, files, dtype, device, packing, attention)
    _check_report(files, report)
    if packing:
        with packing.explain(folder, device):
            run_packed_layers(module, dtype)
    return module, files


def _read(
    view: Path, files: ModelFiles, dtype: torch.dtype, device: torch.device, packing: Packing | None, attention: str
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Return the model on its device, and transformers' report of missing, unexpected and misshaped tensors."""
    config = _copy_config(_config(str(view)))  # read again from the hashed files: the config read before may be older
    read = partial(
        MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].from_pretrained,
        None,  # not the folder, which would be memory-mapped
        config=config,
        state_dict=files.tensors(),
        generation_config=_generation(files.folder / GENERATION),
        dtype=dtype,
        attn_implementation=attention,
        trust_remote_code=False,
        ignore_mismatched_sizes=True,  # `_check_report` raises an error with their names instead
        output_loading_info=True,
    )
    if packing is None:
        module, report = read()
        return module.to(device), report
    with packing.explain(files.folder, device), redirect_stdout(sys.stderr):  # gptqmodel prints to stdout
        return read(**packing.loading(device, dtype))


def _generation(file: Path) -> GenerationConfig | None:
    """Read a generation config, if there is one; raise ModelError for a damaged one."""
    with loading(file, "fetch it again"):
        return GenerationConfig.from_dict(json.loads(file.read_text("utf-8"))) if file.is_file() else None


def _check_report(files: ModelFiles, report: dict[str, Any]) -> None:
    """Raise ModelError for weights that do not match config.json: missing tensors would be random."""
    folder = files.folder
    misshaped = [
        f"{key} is {'x'.join(map(str, actual))} but should be {'x'.join(map(str, expected))}"
        for key, actual, expected in report["mismatched_keys"]
    ]
    tensors = files.tensors() if report["unexpected_keys"] else {}
    unknown = [f"{key} is not in the model" for key in report["unexpected_keys"] if not _unused(key, tensors)]
    bad = sorted([*(f"{key} is missing" for key in report["missing_keys"]), *misshaped, *unknown])
    if bad:
        raise ModelError(
            f"the weights in {folder} do not fit {folder / 'config.json'}: {len(bad)} tensors are missing, unknown or "
            f"of another shape, first {bad[0]}; fetch the model again, or put config.json and weights of one model "
            "there."
        )


def _unused(key: str, tensors: Mapping[str, Any]) -> bool:
    """Tell whether a tensor has no effect, such as the zeros that GPTQ's tools write for missing biases."""
    if any(name in f".{key}" for name in IGNORED_TENSORS):
        return True
    tensor = tensors.get(key) if key.endswith(".bias") else None
    return tensor is not None and (0 in tensor.get_shape() or not tensor[...].any())


def _config(name: str) -> PretrainedConfig:
    """Read the configuration of a folder, a config.json, a GGUF file, a packaged model or a hub name."""
    name = _resolved(name)
    path = Path(name)
    check_model_path(name)
    try:
        return AutoConfig.from_pretrained(name, trust_remote_code=False)
    except StrictDataclassError as error:  # contradictory values
        file = path / "config.json" if path.is_dir() else path
        cause = " ".join(str(error).split())
        raise ModelError(
            f"{file} is not a valid model configuration ({cause}); correct it, or fetch it again."
        ) from error
    except Exception as error:  # any error is possible for a damaged file
        raise ModelError(
            f"no usable model configuration for {name!r} ({reason(error)}); give a folder with config.json, a hub "
            f"name, or with model.init=random one of {', '.join(SHAPES)}."
        ) from error


def _copy_config(config: PretrainedConfig) -> PretrainedConfig:
    """Copy the configuration of a supported family."""
    check_supported(config)
    return copy.deepcopy(config)


def _skeleton(config: PretrainedConfig) -> PreTrainedModel:
    """Make the model in full precision, without memory for its weights."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION_NAME)


def _weights(skeleton: PreTrainedModel, dtype: torch.dtype, packing: Packing | None = None) -> WeightSizes:
    """Return the size of the weights once they are loaded."""
    count, plain = sum(p.numel() for p in skeleton.parameters()), dtype_name(dtype)
    if packing is None:
        return WeightSizes(count, count * dtype.itemsize, plain)
    return WeightSizes(count, packing.stored_bytes(skeleton, dtype), f"{packing} and {plain}")


def _resolved(name: str) -> str:
    """Return the folder of a packaged model or a GGUF file; other names are unchanged."""
    if name in PACKAGED and not Path(name).exists():
        return str(PACKAGED[name].folder())
    is_gguf = name.lower().endswith(GGUF) and Path(name).is_file()
    return str(converted(Path(name))) if is_gguf else name


def _folder(name: str) -> Path:
    """Return ``name`` if it is a folder, else the folder to which the hub's model of this name is fetched."""
    if Path(name).is_dir():
        return Path(name)
    try:
        return Path(snapshot_download(name, allow_patterns=["*.safetensors", "*.json", "*.txt", "*.jinja", "*.model"]))
    except (OSError, HfHubHTTPError) as error:
        raise ModelError(f"cannot fetch model {name!r} ({reason(error)}); check its name and the network.") from error
