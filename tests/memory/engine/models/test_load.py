"""Loading: supported models come up with the same logits as transformers', everything else is one sentence."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from keep_agent.errors import CapacityError, ConfigError, KeepError, ModelError
from memory.engine.models import capacity
from memory.engine.models.load import LoadedModel, load_model
from memory.engine.models.model_spec import check_supported
from memory.engine.models.tiny_models import FAMILIES, tiny_model
from memory.engine.transformers.engine import TransformersEngine
from memory.loading.serial import Serial
from memory.prompt.layout import lay_out
from memory.recompute.full import Full

IDS = torch.arange(40)


def save(folder: Path, family: str = "qwen2") -> LoadedModel:
    model = tiny_model(family, layers=2)
    model.module.save_pretrained(folder)
    return model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path)
    return tmp_path


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_model_comes_back(family: str, tmp_path: Path) -> None:
    saved = save(tmp_path, family)
    expected = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager")
    loaded = load_model(tmp_path, dtype="float32")
    assert loaded.folder == tmp_path and loaded.spec.family == saved.spec.family
    with TransformersEngine(loaded, "inline") as engine, torch.no_grad():
        torch.testing.assert_close(engine.forward_plain(IDS), expected(IDS[None]).logits[0], rtol=1e-4, atol=1e-4)
    assert load_model(tmp_path, dtype="float32").spec.model_key == loaded.spec.model_key


def test_the_config_stays_private(folder: Path) -> None:
    """Our attention is on the engine's own config only; models that others load keep theirs."""
    config = AutoConfig.from_pretrained(folder)
    load_model(folder)
    assert config._attn_implementation in (None, "sdpa", "eager")
    peer = AutoModelForCausalLM.from_pretrained(folder)
    assert peer.config._attn_implementation == "sdpa"
    with pytest.raises(ModelError, match="forward_plain"):
        load_model(folder).module(IDS[None])


def test_the_key_changes_with_weights_dtype_and_rope(folder: Path) -> None:
    first = load_model(folder, dtype="float32").spec.model_key
    keys = {first, load_model(folder, dtype="bfloat16").spec.model_key}
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 77.0}
    path.write_text(json.dumps(config))
    keys.add(load_model(folder, dtype="float32").spec.model_key)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] += 1
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    keys.add(load_model(folder, dtype="float32").spec.model_key)
    assert len(keys) == 4


def test_random_weights_by_shape_by_config_and_by_seed(folder: Path) -> None:
    item, two = (load_model("planner-tiny", init="random", seed=s) for s in (1, 1))
    assert item.spec.model_key == two.spec.model_key and item.spec.layers == 12
    assert torch.equal(item.module.lm_head.weight, two.module.lm_head.weight)
    peer = load_model("planner-tiny", init="random", seed=2)
    assert peer.spec.model_key != item.spec.model_key
    assert not torch.equal(peer.module.lm_head.weight, item.module.lm_head.weight)
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
def test_refusals_are_one_sentence(family: str, values: dict[str, Any], match: str) -> None:
    with pytest.raises(ModelError, match=match) as caught:
        check_supported(AutoConfig.for_model(family, **values))
    assert "\n" not in str(caught.value)


def corrupt(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "header":
        path.write_bytes(struct.pack("<Q", 1 << 60) + data[8:])
    elif how == "flipped":
        path.write_bytes(data[:-100] + bytes([data[-100] ^ 1]) + data[-99:])


@pytest.mark.parametrize("how", ["truncated", "empty", "header", "flipped"])
def test_a_corrupt_weight_file_is_named(folder: Path, how: str) -> None:
    path = folder / "model.safetensors"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "SHA256SUMS").write_text(f"{digest}  model.safetensors\n")
    load_model(folder)
    corrupt(path, how)
    with pytest.raises(ModelError, match=r"model\.safetensors is corrupt") as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)


def test_missing_weights_and_tensors(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("model.layers.1.mlp.up_proj.weight")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.up_proj"):
        load_model(folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="only safetensors"):
        load_model(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "part-1.safetensors"}}')
    with pytest.raises(ModelError, match=r"part-1\.safetensors is named by the index but missing"):
        load_model(folder)
    for text in ("{", "[]", '{"weight_map": [1]}'):
        (folder / "model.safetensors.index.json").write_text(text)
        with pytest.raises(ModelError, match="not a valid weight index"):
            load_model(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    with pytest.raises(ModelError, match="names no weight files"):
        load_model(folder)


def test_tensors_without_a_place_are_refused(folder: Path) -> None:
    """Dropped, they would leave another model: fewer layers, or one without its biases."""
    tensors = load_file(folder / "model.safetensors")
    one_more = {name.replace("layers.1.", "layers.2."): tensor.clone() for name, tensor in tensors.items()}
    save_file(one_more | tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"first model\.layers\.2\..* has no place in it; fetch the model again"):
        load_model(folder)
    bias = {"model.layers.1.mlp.up_proj.bias": torch.tensor([0.0, 1.0])}
    save_file(tensors | bias, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"first model\.layers\.1\.mlp\.up_proj\.bias has no place in it"):
        load_model(folder)


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
def test_tensors_that_change_nothing_are_left_out(name: str, folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    for size in ((4,), (0,), ()):
        save_file(tensors | {name: torch.zeros(size)}, folder / "model.safetensors", {"format": "pt"})
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
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    with pytest.raises(ModelError, match=match) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)


def test_names_and_settings_that_mean_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{ not json")
    cases: list[tuple[type[KeepError], str, dict[str, Any]]] = [
        (ModelError, "does not exist", {"name_or_path": tmp_path / "nothing"}),
        (ModelError, "no usable model configuration", {"name_or_path": tmp_path}),
        (ModelError, "shape without weights", {"name_or_path": "qwen2.5-0.5b"}),
        (ConfigError, "model.init='zeros'", {"name_or_path": "planner-tiny", "init": "zeros"}),
        (ConfigError, "model.dtype='int4'", {"name_or_path": "planner-tiny", "dtype": "int4"}),
    ]
    for kind, match, arguments in cases:
        with pytest.raises(kind, match=match):
            load_model(**arguments)


def test_a_model_too_big_says_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "available_bytes", lambda device: 8 << 30)
    numbers = r"needs 67\.4 GiB \(32\.76 billion parameters in bfloat16 .* has 8\.0 GiB free; use a smaller model"
    with pytest.raises(CapacityError, match=numbers):
        load_model("qwen2.5-32b", init="random")


def test_capacity_asks_the_control_group_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit, usage = tmp_path / "max", tmp_path / "current"
    limit.write_text("1000000000\n")
    usage.write_text("400000000\n")
    (tmp_path / "memory.stat").write_text("anon 300000000\ninactive_file 50000000\n")
    monkeypatch.setattr(capacity, "_CGROUP", ((str(tmp_path), "max", "current", "inactive_file"),))
    assert capacity.available_bytes(torch.device("cpu")) == 650_000_000
    limit.write_text("max\n")
    assert capacity.available_bytes(torch.device("cpu")) != 650_000_000


def test_longrope_is_driven_up_to_its_original_length() -> None:
    rope = {
        "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8,
        "original_max_position_embeddings": 64, "factor": 16.0,
    }  # fmt: skip
    model = tiny_model("llama", layers=2, rope_parameters=rope)
    with TransformersEngine(model, "inline") as engine:
        block = engine.encode([(None, list(range(60)))])[0]
        assert block.tokens == 60
        with pytest.raises(CapacityError, match="position 69 lies beyond the 64"):
            engine.encode([(None, list(range(70)))])
        prompt = lay_out((), (), list(range(60)), False, engine.device)
        run = engine.prefill(prompt, Full(), Serial())
        many = [[token, token] for token in range(20)]  # all of them at positions 60 and 61
        assert engine.score(run.cache, many).computed_tokens == 20
