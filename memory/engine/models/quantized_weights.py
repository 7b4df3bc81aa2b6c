"""Quantized checkpoints: the packages and devices that they need, and their bytes in memory.

transformers reads the checkpoints and replaces ``nn.Linear`` by modules of the packages. AWQ: arXiv 2306.00978,
GPTQ: arXiv 2210.17323, LLM.int8: arXiv 2208.07339, NF4: arXiv 2305.14314.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import BitsAndBytesConfig, PretrainedConfig, PreTrainedModel
from transformers.quantizers.base import HfQuantizer
from transformers.quantizers.quantizers_utils import should_convert_module

from keep_agent.errors import ConfigError, ModelError, check_choice

AT_LOAD: dict[str, dict[str, Any]] = {  # settings that pack full-precision checkpoints at load
    "bnb-4bit": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "bnb-8bit": {"load_in_8bit": True},
}
UNPACKED = {"mxfp4"}  # format of gpt-oss; without kernels transformers unpacks it, so the unpacked size is counted
_HALF = (torch.bfloat16, torch.float16)
_BLOCK, _BLOCKS = 64, 256  # bitsandbytes: 4-bit weights that share a scale, and scales that share a second-level scale


@dataclass(frozen=True, slots=True)
class PackingMethod:
    """Method of packing weights, and the pip extra that installs its kernels."""

    title: str
    extra: str
    packages: tuple[str, ...]  # import names
    dtypes: tuple[torch.dtype, ...]  # of activations
    on_cpu: tuple[str, ...] = ()  # formats that run without CUDA


METHODS = {
    "awq": PackingMethod("AWQ", "awq", ("gptqmodel", "accelerate"), _HALF, ("gemm",)),
    "gptq": PackingMethod("GPTQ", "gptq", ("gptqmodel", "optimum", "accelerate"), _HALF, ("gptq", "gptq_v2")),
    "bitsandbytes": PackingMethod(
        "bitsandbytes", "bitsandbytes", ("bitsandbytes", "accelerate"), (*_HALF, torch.float32), ("",)
    ),
}


@dataclass(frozen=True, slots=True)
class Packing:
    """Packing of a model's linear layers."""

    method: PackingMethod
    bits: int
    scale_bits: float  # bits of the scale of a group, and of its zero point if it has one
    group: int  # weights that share a scale; 0: a whole row of the matrix
    format: str = ""
    skipped: tuple[str, ...] = ()  # names of modules that are not packed
    at_load: bool = False  # whether a full-precision checkpoint is packed while it is read

    def __str__(self) -> str:
        return f"{self.bits}-bit {self.method.title}"

    def check(self, name: str, dtype: torch.dtype, device: torch.device) -> None:
        """Check that reading the weights will neither fail nor convert them silently.

        :raises ConfigError: a package is missing, or the kernels do not support ``dtype``
        :raises ModelError: the format runs on CUDA only
        """
        if missing := [package for package in self.method.packages if find_spec(package) is None]:
            raise ConfigError(
                f"model {name!r} in {self} needs {' and '.join(missing)}: "
                f"pip install 'keep-agent[{self.method.extra}]'."
            )
        awq_on_cuda = self.method is METHODS["awq"] and torch.cuda.is_available()  # needs float16 in transformers
        dtypes = (torch.float16,) if awq_on_cuda else self.method.dtypes
        if dtype not in dtypes:
            known, actual = " or ".join(map(dtype_name, dtypes)), dtype_name(dtype)
            raise ConfigError(f"model {name!r} in {self} runs in {known} here, not {actual}; set model.dtype.")
        if device.type != "cuda" and self.format not in self.method.on_cpu:
            raise ModelError(
                f"model {name!r} in {self}, format {self.format!r}, runs on CUDA only, not on {device}; use "
                f"model.device=cuda or a checkpoint in format {' or '.join(self.method.on_cpu)}."
            )

    def check_layers(self, name: str, module: PreTrainedModel) -> None:
        """Raise ModelError for experts that transformers keeps in one tensor, which only bitsandbytes packs."""
        stacked = any(p.ndim == 3 for p in module.parameters())
        if stacked and self.method is not METHODS["bitsandbytes"]:
            raise ModelError(
                f"model {name!r}: transformers keeps the experts of {module.config.model_type!r} in one tensor per "
                f"layer, which {self.method.title} does not pack; use full precision or bitsandbytes."
            )

    def stored_bytes(self, module: PreTrainedModel, dtype: torch.dtype) -> int:
        """Count the bytes of ``module``'s weights: packed linear layers, everything else in ``dtype``.

        transformers does not pack layers that the checkpoint names and, for AWQ or if it names none, the head.
        """
        linear, rest = 0.0, sum(p.numel() for p in module.parameters())
        tied_head = self.method is METHODS["awq"]
        unpacked = HfQuantizer.get_modules_to_not_convert(module, list(self.skipped) or None, None, tied_head)
        for name, layer in module.named_modules():
            if isinstance(layer, nn.Linear) and should_convert_module(name, unpacked):
                count = layer.weight.numel()
                linear += count * self.bits + count / (self.group or layer.in_features) * self.scale_bits
                rest -= count
        return rest * dtype.itemsize + int(linear / 8)

    def loading(self, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
        """Return arguments of ``from_pretrained`` that put packed weights straight on their device."""
        arguments: dict[str, Any] = {"device_map": {"": device}}
        if self.at_load:
            known = AT_LOAD[f"bnb-{self.bits}bit"]
            arguments["quantization_config"] = BitsAndBytesConfig(**known, bnb_4bit_compute_dtype=dtype)
        return arguments

    @contextmanager
    def explain(self, folder: Path, device: torch.device) -> Iterator[None]:
        """Turn the packages' errors about weights that they cannot use into ModelError."""
        try:
            yield
        except (ImportError, RuntimeError, ValueError, LookupError, AttributeError) as error:
            first = (str(error).strip() or "without a reason").splitlines()[0]
            raise ModelError(
                f"the weights in {folder} cannot be used as {self} on {device} ({type(error).__name__}: {first}); "
                "fetch the model again, or use one in another format."
            ) from error


@torch.no_grad()
def run_packed_layers(module: PreTrainedModel, dtype: torch.dtype) -> None:
    """Run a row through every packed layer before the model is copied: packages change weights at the first call."""
    logging.getLogger("bitsandbytes.autograd").setLevel(logging.ERROR)  # it logs its casts at every product
    for layer in module.modules():
        if type(layer) is not nn.Linear and hasattr(layer, "in_features"):
            layer(torch.ones(1, layer.in_features, dtype=dtype, device=module.device))


def find_packing(name: str, config: PretrainedConfig, quantization: str | None = None) -> Packing | None:
    """Return the packing of the checkpoint of ``config``, or the one to apply at load; None: not packed.

    :raises ModelError: a method that is not supported.
    :raises ConfigError: an unknown ``quantization``, or the weights are packed already.
    """
    values = getattr(config, "quantization_config", None)
    if quantization is not None:
        check_choice("model.quantization", quantization, AT_LOAD, null=True)
        if values:
            raise ConfigError(
                f"model {name!r} has {values.get('quant_method')} weights already, so model.quantization="
                f"{quantization} cannot pack them; leave it null."
            )
        return _bitsandbytes(AT_LOAD[quantization], at_load=True)
    if not values:
        return None
    in_bits = values.get("load_in_4bit") or values.get("load_in_8bit")
    method = values.get("quant_method") or ("bitsandbytes" if in_bits else None)
    if method in UNPACKED:
        return None
    if method not in METHODS:
        raise ModelError(
            f"model {name!r} has weights packed by {method!r}, which is not supported; use a checkpoint in "
            f"{', '.join(METHODS)} or full precision."
        )
    return _bitsandbytes(values) if method == "bitsandbytes" else _grouped(method, values)


def _bitsandbytes(values: dict[str, Any], at_load: bool = False) -> Packing:
    method, skipped = METHODS["bitsandbytes"], tuple(values.get("llm_int8_skip_modules") or ())
    if not values.get("load_in_4bit"):
        return Packing(method, 8, 32, 0, skipped=skipped, at_load=at_load)
    scale = 8 + 32 / _BLOCKS if values.get("bnb_4bit_use_double_quant") else 32
    return Packing(method, 4, scale, _BLOCK, skipped=skipped, at_load=at_load)


def _grouped(method: str, values: dict[str, Any]) -> Packing:
    """Make the packing of AWQ or GPTQ: a 16-bit scale and a packed zero point per group; ``group_size=-1``: per row."""
    bits, group = int(values.get("bits", 4)), max(int(values.get("group_size", 128)), 0)
    keys = ("checkpoint_format", "format", "version")
    format = next((str(values[key]).lower() for key in keys if values.get(key)), METHODS[method].on_cpu[0])
    skipped = tuple(values.get("modules_to_not_convert") or ())
    return Packing(METHODS[method], bits, 16 + bits, group, format, skipped)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
