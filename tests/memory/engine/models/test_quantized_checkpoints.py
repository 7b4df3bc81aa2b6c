"""Quantised checkpoints: their results, their sizes, and refusals in one sentence.

AWQ and GPTQ files are packed here from the formats' definition, and their models compared with plain linear layers of
the same, unpacked weights.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig

from eval.fidelity.laws import recompute_everything, reuse_a_prefix
from keep_agent.errors import CapacityError, ConfigError, KeepError, ModelError
from memory.engine.models import capacity, load, quantized_weights
from memory.engine.models.capacity import WeightSizes
from memory.engine.models.load import LoadedModel, load_model
from memory.engine.models.model_shapes import SHAPES
from memory.engine.models.quantized_weights import METHODS
from memory.engine.models.tiny_models import FAMILIES, tiny_model
from memory.engine.transformers.engine import TransformersEngine
from memory.loading.serial import Serial
from memory.recompute.multi_hop import MultiHop
from memory.recompute.none import Nothing
from tests.laws.prompts import Prompt, relative
from tests.memory.engine.models.folders import refusal, save_weights, set_config

GROUP = 32  # weights per scale
GROUPED = {"bits": 4, "group_size": GROUP}
CONFIGS: dict[str, dict[str, Any]] = {
    "awq": {"quant_method": "awq", "zero_point": True, "version": "gemm", **GROUPED},
    "gptq": {"quant_method": "gptq", "desc_act": False, "sym": False, "checkpoint_format": "gptq", **GROUPED},
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
}
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
WIDE = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8}  # so that small tables matter little
CLOSE = 5e-2  # the kernels compute in 16 bits, or 8
IDS = Prompt.random().ids


def needs(method: str) -> pytest.MarkDecorator:
    missing = [package for package in METHODS[method].packages if find_spec(package) is None]
    reason = f"needs {' and '.join(missing)}: pip install 'keep-agent[{METHODS[method].extra}]'"
    return pytest.mark.skipif(bool(missing), reason=reason)


GPTQMODEL = pytest.mark.parametrize("method", [pytest.param(method, marks=needs(method)) for method in ("awq", "gptq")])
AT_LOAD = pytest.mark.parametrize("quantization", ["bnb-4bit", "bnb-8bit"])


def packed(codes: torch.Tensor, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """Pack 4-bit codes (rows, columns) into 32-bit words (rows, columns / 8), the lowest bits first."""
    parts = codes.long().unflatten(-1, (-1, 8))[..., list(order)]
    words = (parts << torch.arange(0, 32, 4)).sum(-1)
    return torch.where(words < 1 << 31, words, words - (1 << 32)).int()


def rounded(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return codes (in, out), zero points and scales (groups, out) of a weight (out, in), and the rounded weight."""
    groups = weight.T.unflatten(0, (-1, GROUP))
    low, high = groups.amin(1).clamp(max=0), groups.amax(1).clamp(min=0)
    scale = ((high - low) / 15).half().float()
    zero = (-low / scale).round()
    codes = (groups / scale[:, None] + zero[:, None]).round().clamp(0, 15)
    back = (codes - zero[:, None]) * scale[:, None]
    return codes.flatten(0, 1), zero, scale.half(), back.flatten(0, 1).T.contiguous()


def pack(method: str, name: str, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Make the tensors of one linear layer in a checkpoint of AWQ (GEMM) or GPTQ (v1: zero points minus one)."""
    codes, zero, scale, _ = rounded(weight)
    if method == "awq":
        actual = {"qweight": packed(codes, AWQ_ORDER), "qzeros": packed(zero, AWQ_ORDER), "scales": scale}
    else:
        words = packed(codes.T).T.contiguous()
        groups = torch.arange(weight.shape[1], dtype=torch.int32) // GROUP
        actual = {"qweight": words, "qzeros": packed((zero - 1) % 16), "scales": scale, "g_idx": groups}
    return {name.replace("weight", key): value for key, value in actual.items()}


def save_packed(method: str, folder: Path, family: str = "qwen2", **sizes: int) -> None:
    """Save a packed checkpoint in ``folder``, and the same model with its rounded weights in ``folder/plain``."""
    tiny_model(family, layers=4, **sizes).module.save_pretrained(folder / "plain")
    stored = load_file(folder / "plain" / "model.safetensors")
    tensors = {key: value.half().float() for key, value in stored.items()}
    linear = [key for key in tensors if key.endswith("_proj.weight")]
    small = {key: value.half() for key, value in tensors.items() if key not in linear}
    for key in linear:
        small |= pack(method, key, tensors[key])
        tensors[key] = rounded(tensors[key])[3]
    save_weights(folder / "plain", tensors)
    save_weights(folder, small)
    (folder / "config.json").write_text((folder / "plain" / "config.json").read_text())
    set_config(folder, quantization_config=CONFIGS[method])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A full-precision checkpoint."""
    tiny_model("qwen2", layers=4).module.save_pretrained(tmp_path)
    return tmp_path


def check_laws(model: LoadedModel) -> None:
    """Check the exactness laws on a model, and that a prefill without recomputation differs from the plain forward."""
    prompt = Prompt.random()
    with TransformersEngine(model, "inline") as engine:
        plain = engine.forward_plain(prompt.ids)[-1]
        assert plain.isfinite().all()
        assert max(recompute_everything(engine), reuse_a_prefix(engine)) < CLOSE
        layout = prompt.layout(prompt.blocks(engine))
        keep = engine.prefill(layout, MultiHop(), Serial())
        assert keep.trace.computed_ratio < 1 and keep.logits.isfinite().all()
        assert relative(engine.prefill(layout, Nothing(), Serial()).logits[0], plain) > CLOSE, "no law could fail"


@GPTQMODEL
@pytest.mark.parametrize("family", ["qwen2", "gemma3_text"])
def test_a_packed_checkpoint_computes_with_its_rounded_weights(method: str, family: str, tmp_path: Path) -> None:
    save_packed(method, tmp_path, family)
    loaded, unpacked = load_model(tmp_path), load_model(tmp_path / "plain", "float32")
    assert loaded.spec.dtype == torch.bfloat16
    assert loaded.spec.parameter_bytes < 0.4 * unpacked.spec.parameter_bytes
    with TransformersEngine(loaded, "inline") as engine, TransformersEngine(unpacked, "inline") as reference:
        assert relative(engine.forward_plain(IDS).float(), reference.forward_plain(IDS)) < CLOSE
    check_laws(loaded)


@GPTQMODEL
def test_a_packed_checkpoint_without_some_scales_is_refused(method: str, tmp_path: Path) -> None:
    save_packed(method, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.scales"]
    save_weights(tmp_path, tensors)
    refusal(r"layers\.1\.mlp\.up_proj\.scales is missing", tmp_path)


@needs("bitsandbytes")
@AT_LOAD
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_full_precision_is_packed_while_it_is_read(quantization: str, dtype: str, folder: Path) -> None:
    loaded = load_model(folder, dtype, quantization=quantization)
    assert loaded.spec.dtype == getattr(torch, dtype)
    check_laws(loaded)


@needs("bitsandbytes")
@pytest.mark.parametrize("family", FAMILIES)
def test_families_in_4_bits(family: str, tmp_path: Path) -> None:
    """Use float32, in which the order of a sum does not change an expert router's choice."""
    tiny_model(family, layers=4).module.save_pretrained(tmp_path)
    with TransformersEngine(load_model(tmp_path, "float32", quantization="bnb-4bit"), "inline") as engine:
        assert recompute_everything(engine) < CLOSE


@needs("bitsandbytes")
@AT_LOAD
def test_a_saved_bitsandbytes_checkpoint_is_loaded_again(quantization: str, folder: Path, tmp_path: Path) -> None:
    first = load_model(folder, quantization=quantization)
    first.module.save_pretrained(tmp_path / "small")
    second = load_model(tmp_path / "small")
    with TransformersEngine(first, "inline") as engine, TransformersEngine(second, "inline") as peer:
        assert torch.equal(engine.forward_plain(IDS), peer.forward_plain(IDS))
    assert second.spec.parameter_bytes == pytest.approx(first.spec.parameter_bytes, rel=0.01)  # and metadata
    check_laws(second)


@needs("bitsandbytes")
def test_a_bitsandbytes_checkpoint_without_some_scales_is_refused(folder: Path, tmp_path: Path) -> None:
    load_model(folder, quantization="bnb-4bit").module.save_pretrained(tmp_path / "small")
    tensors = load_file(tmp_path / "small" / "model.safetensors")
    save_weights(tmp_path / "small", {k: t for k, t in tensors.items() if "1.mlp.up_proj.weight." not in k})
    refusal("4-bit bitsandbytes", tmp_path / "small")


@needs("bitsandbytes")
def test_the_key_names_the_quantisation(folder: Path) -> None:
    kinds = (None, "bnb-4bit", "bnb-8bit")
    keys = [[load_model(folder, quantization=kind).spec.model_key for kind in kinds] for _ in range(2)]
    assert keys[0] == keys[1] and len(set(keys[0])) == 3


@pytest.fixture
def capacity_checks(monkeypatch: pytest.MonkeyPatch) -> list[WeightSizes]:
    """Return the list of sizes that the capacity check receives."""
    actual: list[WeightSizes] = []
    monkeypatch.setattr(load, "check_capacity", lambda name, weights, device: actual.append(weights))
    return actual


@needs("bitsandbytes")
@AT_LOAD
@pytest.mark.parametrize("family", ["qwen2", "qwen3_moe"])
def test_the_capacity_check_counts_weights_packed_at_load(
    family: str, quantization: str, tmp_path: Path, capacity_checks: list[WeightSizes]
) -> None:
    tiny_model(family, layers=2, **WIDE).module.save_pretrained(tmp_path)
    spec = load_model(tmp_path, quantization=quantization).spec
    assert capacity_checks[-1].bytes == pytest.approx(spec.parameter_bytes, rel=0.03)


@GPTQMODEL
def test_the_capacity_check_counts_the_weights_of_a_packed_checkpoint(
    method: str, tmp_path: Path, capacity_checks: list[WeightSizes]
) -> None:
    save_packed(method, tmp_path, "qwen2", **WIDE)
    spec = load_model(tmp_path).spec
    assert capacity_checks[-1].bytes == pytest.approx(spec.parameter_bytes, rel=0.03)
    assert spec.parameter_bytes < capacity_checks[-1].parameters * 1.3


@pytest.mark.parametrize("family", FAMILIES)
def test_the_bytes_of_plain_weights_are_those_of_their_parameters(family: str) -> None:
    model = tiny_model(family, layers=2)
    assert model.spec.parameter_bytes == sum(p.nbytes for p in model.module.parameters())


@pytest.mark.parametrize("method", CONFIGS)
def test_a_missing_package_is_named_with_its_extra(method: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_config(folder, quantization_config=CONFIGS[method])
    monkeypatch.setattr(quantized_weights, "find_spec", lambda name: None)
    package = {"awq": "gptqmodel", "gptq": "gptqmodel and optimum"}.get(method, method)
    refusal(rf"needs {package} .*pip install 'keep-agent\[{method}\]'", folder, kind=ConfigError)


REFUSALS: list[tuple[type[KeepError], str, dict[str, Any], dict[str, Any]]] = [
    (ModelError, "packed by 'aqlm', which is not supported", {"quant_method": "aqlm"}, {}),
    (ModelError, "format 'gemv', runs on CUDA only", CONFIGS["awq"] | {"version": "GEMV"}, {"dtype": "float16"}),
    (ModelError, "format 'marlin', runs on CUDA", CONFIGS["gptq"] | {"checkpoint_format": "marlin"}, {}),
    (ConfigError, "runs in .*float16 here, not float32; set model.dtype", CONFIGS["awq"], {"dtype": "float32"}),
    (ConfigError, "not float64", CONFIGS["bitsandbytes"], {"dtype": "float64"}),
    (ConfigError, "has gptq weights already", CONFIGS["gptq"], {"quantization": "bnb-4bit"}),
    (ConfigError, "random weights are not quantised", CONFIGS["awq"], {"init": "random"}),
    (ConfigError, "model.quantization='int3' is unknown; use one of bnb-4bit, bnb-8bit, null", {},
     {"quantization": "int3"}),
]  # fmt: skip


@pytest.fixture
def all_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that every package is installed."""
    monkeypatch.setattr(quantized_weights, "find_spec", lambda name: name)


@pytest.mark.usefixtures("all_packages")
@pytest.mark.parametrize(("kind", "match", "values", "arguments"), REFUSALS)
def test_refusals_before_weights_are_read(
    kind: type[KeepError], match: str, values: dict[str, Any], arguments: dict[str, Any], folder: Path
) -> None:
    (folder / "model.safetensors").unlink()
    if values:
        set_config(folder, quantization_config=values)
    refusal(match, folder, kind=kind, **arguments)


@pytest.mark.usefixtures("all_packages")
def test_experts_in_one_tensor_are_refused(tmp_path: Path) -> None:
    tiny_model("qwen3_moe", layers=2).module.save_pretrained(tmp_path)
    set_config(tmp_path, quantization_config=CONFIGS["gptq"])
    refusal("experts of 'qwen3_moe' in one tensor per layer, which GPTQ does not pack", tmp_path, "float16")


@pytest.mark.usefixtures("all_packages")
def test_the_refusal_of_a_packed_model_names_its_packed_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen2.5-32B: 31.21 of 32.76 billion weights in 4 bits and a 16-bit scale and 4-bit zero point per 128."""
    AutoConfig.for_model(**SHAPES["qwen2.5-32b"]).save_pretrained(tmp_path)
    set_config(tmp_path, quantization_config=CONFIGS["awq"] | {"group_size": 128})
    monkeypatch.setattr(capacity, "available_bytes", lambda device: 8 << 30)
    hidden, inner, kv = 5120, 27648, 1024
    linear = 64 * (2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * inner)
    norms_and_biases = 64 * (2 * hidden + hidden + 2 * kv) + hidden
    stored = linear * (4 + 20 / 128) / 8 + 2 * (2 * 152064 * hidden + norms_and_biases)
    needed = f"{(1.1 * stored + (256 << 20)) / (1 << 30):.1f}"
    assert needed == "20.1", "in bfloat16 it is 67.4"
    message = rf"needs {needed} GiB \(32\.76 billion parameters in 4-bit AWQ and float16"
    refusal(message, tmp_path, "float16", kind=CapacityError)
