"""Loading: supported models have the logits of transformers, others are refused in one sentence."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from keep_agent.errors import CapacityError, ConfigError, ModelError
from memory.engine.models import capacity
from memory.engine.models.load import load_model
from memory.engine.models.model_spec import check_supported
from memory.engine.models.tiny_models import FAMILIES, tiny_model
from memory.engine.transformers.engine import TransformersEngine
from memory.loading.serial import Serial
from memory.prompt.layout import lay_out
from memory.recompute.full import Full
from tests.memory.engine.models.folders import refusal, save_weights, set_config

IDS = torch.arange(40)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_model("qwen2", layers=2).module.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_model_is_loaded_with_its_logits(family: str, tmp_path: Path) -> None:
    saved = tiny_model(family, layers=2)
    saved.module.save_pretrained(tmp_path)
    expected = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager")
    loaded = load_model(tmp_path, dtype="float32")
    assert loaded.folder == tmp_path and loaded.spec.family == saved.spec.family
    with TransformersEngine(loaded, "inline") as engine, torch.no_grad():
        torch.testing.assert_close(engine.forward_plain(IDS), expected(IDS[None]).logits[0], rtol=1e-4, atol=1e-4)
    keys = [load_model(tmp_path, dtype=dtype).spec.model_key for dtype in ("float32", "bfloat16")]
    assert keys[0] == loaded.spec.model_key != keys[1]


def test_the_config_stays_private(folder: Path) -> None:
    """The engine's attention is in its own config only, not in those of other loaded models."""
    config = AutoConfig.from_pretrained(folder)
    load_model(folder)
    assert config._attn_implementation in (None, "sdpa", "eager")
    peer = AutoModelForCausalLM.from_pretrained(folder)
    assert peer.config._attn_implementation == "sdpa"
    with pytest.raises(ModelError, match="forward_plain"):
        load_model(folder).module(IDS[None])


def test_random_weights_by_shape_by_config_and_by_seed(folder: Path) -> None:
    first, twin, peer = (load_model("planner-tiny", init="random", seed=seed) for seed in (1, 1, 2))
    assert first.spec.layers == 12
    for model, same in ((twin, True), (peer, False)):
        assert (model.spec.model_key == first.spec.model_key) == same
        assert torch.equal(model.module.lm_head.weight, first.module.lm_head.weight) == same
    for name in (folder, folder / "config.json"):
        assert load_model(name, init="random").spec.layers == 2


def test_random_weights_leave_the_callers_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    load_model("planner-tiny", init="random", seed=1)
    assert torch.equal(torch.rand(3), expected)


REFUSALS: list[tuple[str, dict[str, Any], str]] = [
    ("deepseek_v3", {}, "MLA"),
    ("mamba2", {}, "mamba2"),
    ("qwen3_next", {}, "linear_attention"),
    ("gpt2", {}, "'gpt2' is not supported"),
    ("gemma3_text", {"use_bidirectional_attention": True}, "bidirectional"),
    ("qwen2", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "dynamic"),
]


@pytest.mark.parametrize(("family", "values", "match"), REFUSALS)
def test_unsupported_models_are_refused(family: str, values: dict[str, Any], match: str) -> None:
    refusal(match, AutoConfig.for_model(family, **values), load=check_supported)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "header": lambda data: struct.pack("<Q", 1 << 60) + data[8:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_corrupt_weight_file_is_named(folder: Path, damage: str) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    refusal(r"weight file .*model\.safetensors is corrupt", folder)


def test_missing_weights_and_tensors(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("model.layers.1.mlp.up_proj.weight")
    save_weights(folder, tensors)
    refusal(r"layers\.1\.mlp\.up_proj", folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refusal("only safetensors", folder)
    for index, match in (
        ('{"weight_map": {"a": "part-1.safetensors"}}', r"part-1\.safetensors is named by the index but missing"),
        ('{"weight_map": {"a": "../b.safetensors"}}', r"'\.\./b\.safetensors', which is not in its folder"),
        ("{", "not a valid weight index"),
        ("[]", "not a valid weight index"),
        ('{"weight_map": [1]}', "not a valid weight index"),
        ('{"weight_map": {}}', "names no weight files"),
    ):
        (folder / "model.safetensors.index.json").write_text(index)
        refusal(match, folder)


def test_tensors_without_a_place_are_refused(folder: Path) -> None:
    """Without these tensors it would be another model: one with fewer layers, or without its biases."""
    tensors = load_file(folder / "model.safetensors")
    one_more = {name.replace("layers.1.", "layers.2."): tensor.clone() for name, tensor in tensors.items()}
    save_weights(folder, one_more | tensors)
    refusal(r"first model\.layers\.2\..* is not in the model; fetch the model again", folder)
    save_weights(folder, tensors | {"model.layers.1.mlp.up_proj.bias": torch.tensor([0.0, 1.0])})
    refusal(r"first model\.layers\.1\.mlp\.up_proj\.bias is not in the model", folder)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.rotary_emb.inv_freq",  # of old checkpoints
        "model.layers.0.self_attn.rotary_emb.cos_cached",
        "model.layers.0.self_attn.k_scale",  # llm-compressor's
        "model.layers.1.mlp.up_proj.bias",  # GPTQ's
        "v_head.summary.weight",  # TRL's
    ],
)
def test_tensors_without_an_effect_are_ignored(name: str, folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    for size in ((4,), (0,), ()):
        save_weights(folder, tensors | {name: torch.zeros(size)})
        load_model(folder)


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"intermediate_size": 100}, r"config\.json: 6 tensors .*mlp\.down_proj\.weight is 64x128 but should be 64x100"),
    ({"vocab_size": 100}, r"config\.json: 2 tensors .* first lm_head\.weight is 512x64 but should be 100x64"),
    ({"layer_types": ["full_attention"]}, r"config\.json is not a valid .*`layer_types` \(1\).*; correct it"),
    ({"hidden_size": "big"}, r"config\.json is not a valid .*expected int, got str .*; correct it"),
]


@pytest.mark.parametrize(("values", "match"), CONTRADICTIONS)
def test_a_configuration_that_contradicts_the_weights_or_itself(
    folder: Path, values: dict[str, Any], match: str
) -> None:
    set_config(folder, **values)
    assert str(folder) in refusal(match, folder)


def test_unknown_names_and_settings_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{ not json")
    refusal("does not exist", tmp_path / "nothing")
    refusal("no usable model configuration", tmp_path)
    refusal("shape without weights", "qwen2.5-0.5b")
    refusal("model.init='zeros'", "planner-tiny", init="zeros", kind=ConfigError)
    refusal("model.dtype='int4'", "planner-tiny", dtype="int4", kind=ConfigError)


def test_the_refusal_of_a_model_that_does_not_fit_has_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "available_bytes", lambda device: 8 << 30)
    numbers = r"needs 67\.4 GiB \(32\.76 billion parameters in bfloat16 .* has 8\.0 GiB free; use a smaller model"
    refusal(numbers, "qwen2.5-32b", init="random", kind=CapacityError)


def test_capacity_includes_the_limit_of_the_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit, usage = tmp_path / "max", tmp_path / "current"
    limit.write_text("1000000000\n")
    usage.write_text("400000000\n")
    (tmp_path / "memory.stat").write_text("anon 300000000\ninactive_file 50000000\n")
    monkeypatch.setattr(capacity, "_CGROUP", ((str(tmp_path), "max", "current", "inactive_file"),))
    assert capacity.available_bytes(torch.device("cpu")) == 650_000_000
    limit.write_text("max\n")
    assert capacity.available_bytes(torch.device("cpu")) != 650_000_000


def test_longrope_is_limited_to_its_original_length() -> None:
    rope = {
        "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8,
        "original_max_position_embeddings": 64, "factor": 16.0,
    }  # fmt: skip
    with TransformersEngine(tiny_model("llama", layers=2, rope_parameters=rope), "inline") as engine:
        block = engine.encode([(None, list(range(60)))])[0]
        assert block.tokens == 60
        with pytest.raises(CapacityError, match="position 69 is beyond the 64"):
            engine.encode([(None, list(range(70)))])
        prompt = lay_out((), (), list(range(60)), False, engine.device)
        run = engine.prefill(prompt, Full(), Serial())
        many = [[token, token] for token in range(20)]  # all of them at positions 60 and 61
        assert engine.score(run.cache, many).computed_tokens == 20
