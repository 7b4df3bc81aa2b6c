"""Adapters of a model: LoRA weights in PEFT's format, merged into the model's weights when it is loaded."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keep_agent.errors import ConfigError, ModelError
from keep_agent.files import loading, read_json, reason
from memory.engine.models.model_files import ModelFiles, hashed_files
from memory.engine.models.model_path import ADAPTER
from memory.files.tensor_file import read_tensors

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)
WEIGHTS = "adapter_model.safetensors"
FIELDS = (  # fields of adapter_config.json that determine the adapted model
    "r", "lora_alpha", "target_modules", "exclude_modules", "fan_in_fan_out", "bias", "use_rslora", "modules_to_save",
    "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern", "use_dora", "lora_bias",
)  # fmt: skip
HARMLESS = (  # fields that matter in training only, or name the base model
    "task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
    "lora_dropout", "megatron_core", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "runtime_config",
    "velora_config", "ensure_weight_tying", "qalora_group_size",
)  # fmt: skip
INITS = (True, False, "gaussian", "orthogonal", "eva", None)  # of LoRA weights: those that leave the base as it is


def adapter_files(folder: Path) -> ModelFiles:
    """Hash the files of an adapter, and check them against ``SHA256SUMS`` if the folder has one.

    :raises ModelError: a file is missing or damaged
    """
    for name in (ADAPTER, WEIGHTS):
        if not (folder / name).is_file():
            raise ModelError(
                f"model.adapter={folder} has no {name}; give the folder of a PEFT adapter with safetensors weights"
            )
    return hashed_files(folder, [folder / WEIGHTS], [folder / ADAPTER])


def merge_adapter(module: PreTrainedModel, files: ModelFiles, name: str) -> PreTrainedModel:
    """Return the model with an adapter merged into its weights; the model ``name`` is not kept.

    :raises ConfigError: the package peft is not installed
    :raises ModelError: the adapter is of an unsupported kind, or was made for another model
    :raises DataError: its configuration is not JSON
    """
    if find_spec("peft") is None:
        raise ConfigError(f"model.adapter={files.folder} needs the package peft; install 'keep-agent[peft]'")
    from peft import LoraConfig, PeftModel, set_peft_model_state_dict

    values = read_json(files.folder / ADAPTER, "fetch the adapter again")
    fields = _checked(values, files.folder)
    base = str(values.get("base_model_name_or_path") or "a model that it does not name")
    misfit = f"give the model that it was trained for, {base}"
    what = f"adapter {str(files.folder)!r} of model {name!r}"
    with loading(what, "fetch the adapter again"):
        config = LoraConfig(**fields, inference_mode=True, task_type="CAUSAL_LM")
    with loading(what, misfit), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft's use of transformers
        adapted = PeftModel(module, config)
        tensors = read_tensors(files.weights[0])
        result = set_peft_model_state_dict(adapted, tensors)
    _check_fit(tensors, result, f"the adapter in {files.folder} does not fit model {name!r}", misfit)
    if base.rstrip("/").rpartition("/")[2].lower() not in name.lower():
        log.warning("the adapter in %s was trained for %s, and is applied to %s", files.folder, base, name)
    try:
        merged = adapted.merge_and_unload(safe_merge=True)
    except (ValueError, RuntimeError) as error:
        raise ModelError(f"the adapter in {files.folder} cannot be merged ({reason(error)}); {misfit}") from error
    if hasattr(merged, "peft_config"):
        del merged.peft_config
    return merged


def _checked(values: Any, folder: Path) -> dict[str, Any]:
    """Return the fields of a LoRA configuration. Raises ModelError for an unsupported kind of adapter."""
    if not isinstance(values, dict) or values.get("peft_type") != "LORA":
        kind = values.get("peft_type") if isinstance(values, dict) else values
        raise ModelError(f"the adapter in {folder} is of kind {kind!r}, and only LORA is supported; use a LoRA adapter")
    init = values.get("init_lora_weights", True)
    odd = [key for key, value in values.items() if value and key not in (*FIELDS, *HARMLESS, "init_lora_weights")]
    if odd or not any(init is known or init == known for known in INITS):
        what = f"{odd[0]}={values[odd[0]]!r}" if odd else f"init_lora_weights={init!r}"
        raise ModelError(
            f"the adapter in {folder} has {what}, which is not supported; merge it into its base model (in peft: "
            "merge_and_unload, then save_pretrained) and load the result"
        )
    return {key: values[key] for key in FIELDS if values.get(key) is not None}


def _check_fit(tensors: Mapping[str, torch.Tensor], result: Any, what: str, remedy: str) -> None:
    missing = [key for key in result.missing_keys if "lora_" in key or "modules_to_save" in key]
    odd = [*(f"{key} is missing" for key in missing), *(f"{key} is not in the model" for key in result.unexpected_keys)]
    if odd or not tensors:
        raise ModelError(f"{what}: {odd[0] if odd else 'it has no tensors'}; {remedy}")
