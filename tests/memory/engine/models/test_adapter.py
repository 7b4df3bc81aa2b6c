"""LoRA adapters: the merged model equals PEFT's, the adapter is part of the identity, and misfits are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from keep_agent.errors import ConfigError, ModelError
from memory.engine.models import adapter
from memory.engine.models.load import load_model
from memory.engine.models.tiny_models import tiny_model
from memory.engine.transformers.engine import TransformersEngine
from memory.files.checksums import CHECKSUMS, digests_of, write_sums

peft = pytest.importorskip("peft", reason="needs the extra peft")
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
IDS = torch.arange(20)
Make = Callable[..., Path]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny-base"
    tiny_model("llama", layers=2).module.save_pretrained(folder)
    return folder


@pytest.fixture
def make(base: Path, tmp_path: Path) -> Make:
    """Return a function that writes a random adapter with further fields of its configuration."""

    def write(name: str = "adapter", model: Path = base, seed: int = 0, **fields: Any) -> Path:
        from transformers import AutoModelForCausalLM

        torch.manual_seed(seed)
        values = {"r": 4, "target_modules": "all-linear", "task_type": "CAUSAL_LM", **fields}
        config = peft.LoraConfig(**values)
        module = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(model), config)
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.data.normal_(std=0.3)
        module.save_pretrained(tmp_path / name)
        return tmp_path / name

    return write


def set_field(folder: Path, **values: Any) -> Path:
    file = folder / CONFIG
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
    return folder


def logits(model: Path, adapter: Path | None) -> torch.Tensor:
    with TransformersEngine(load_model(model, "float32", adapter=adapter)) as engine:
        return engine.forward_plain(IDS)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"use_rslora": True},
        {"use_dora": True},
        {"modules_to_save": ["lm_head"]},
        {"target_modules": ["q_proj", "v_proj"], "layers_to_transform": [1]},
        {"rank_pattern": {"q_proj": 2}},
    ],
    ids=str,
)
def test_the_merged_model_equals_pefts(base: Path, make: Make, fields: dict[str, Any]) -> None:
    from transformers import AutoModelForCausalLM

    folder = make(**fields)
    due = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), folder)
    with torch.no_grad():
        expected = due.eval()(IDS[None]).logits[0]
    error = float((logits(base, folder) - expected).norm() / expected.norm())
    assert error < 1e-5
    assert float((logits(base, None) - expected).norm() / expected.norm()) > 0.1


def test_the_adapter_is_part_of_the_models_identity(base: Path, make: Make) -> None:
    def keys(folder: Path | None) -> tuple[str, str]:
        spec = load_model(base, "float32", adapter=folder).spec
        return spec.model_key, spec.weights_key

    first, second = make("first"), make("second", seed=1)
    assert len({keys(None), keys(first), keys(second)}) == 3 and keys(first) == keys(first)
    before = keys(first)
    save_file({name: 2 * tensor for name, tensor in load_file(first / WEIGHTS).items()}, first / WEIGHTS)
    after = keys(first)
    assert after[0] != before[0] and after[1] != before[1]
    set_field(first, lora_alpha=3)
    assert keys(first)[0] != after[0]


def refusal(match: str, model: Path, folder: Path, kind: type[Exception] = ModelError, **options: Any) -> None:
    with pytest.raises(kind, match=match):
        load_model(model, "float32", adapter=folder, **options)


def test_adapters_of_another_model_are_refused(base: Path, make: Make, tmp_path: Path) -> None:
    wide = tmp_path / "other"
    tiny_model("llama", layers=2, hidden_size=128).module.save_pretrained(wide)
    misfit = r"adapter .* model '.*tiny-base'.*; give the model that it was trained for, .*other"
    refusal(misfit, base, make("wide", wide))
    deeper = tmp_path / "deeper"
    tiny_model("llama", layers=4).module.save_pretrained(deeper)
    refusal(
        r"adapter in .* does not fit model .* is not in the model; give the model .*deeper", base, make("deep", deeper)
    )
    shallow = make("shallow")
    save_file(dict(list(load_file(shallow / WEIGHTS).items())[1:]), shallow / WEIGHTS)
    refusal(r"does not fit model .* is missing; give", base, shallow)


def test_an_adapter_for_a_model_of_another_name_is_applied_with_a_warning(
    base: Path, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make()
    load_model(base, "float32", adapter=folder)
    assert not caplog.records
    load_model(base, "float32", adapter=set_field(folder, base_model_name_or_path="some/Other-Model"))
    assert "was trained for some/Other-Model, and is applied to" in caplog.text


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"peft_type": "IA3"}, "is of kind 'IA3', and only LORA is supported"),
        ({"alora_invocation_tokens": [1]}, r"has alora_invocation_tokens=\[1\], which is not supported; merge it"),
        ({"init_lora_weights": "pissa"}, "has init_lora_weights='pissa', which is not supported"),
        ({"layer_replication": [[0, 2]]}, "has layer_replication="),
        ({"target_modules": ["nothing"]}, "cannot load adapter .*nothing"),
        ({"r": -1}, "cannot load adapter"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_unsupported_adapters_are_refused(base: Path, make: Make, values: dict[str, Any], match: str) -> None:
    refusal(match, base, set_field(make(), **values))


def test_missing_and_damaged_files_are_named(base: Path, make: Make, tmp_path: Path) -> None:
    folder = make()
    write_sums(folder / CHECKSUMS, {file.name: digest for file, digest in digests_of([folder / WEIGHTS]).items()})
    load_model(base, "float32", adapter=folder)
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    refusal(r"adapter_model.safetensors is corrupt or was changed", base, folder)
    (folder / CHECKSUMS).unlink()
    (folder / WEIGHTS).write_bytes(content[:100])
    refusal(r"adapter_model.safetensors is corrupt", base, folder)
    (folder / WEIGHTS).unlink()
    refusal("has no adapter_model.safetensors; give the folder of a PEFT adapter", base, folder)
    refusal("has no adapter_config.json", base, tmp_path / "none")
    (folder / WEIGHTS).write_bytes(content)
    (folder / CONFIG).write_text("{")
    with pytest.raises(Exception, match="is not JSON"):
        load_model(base, "float32", adapter=folder)


def test_an_adapter_needs_pretrained_weights_and_peft(base: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make()
    refusal("is for pretrained weights", base, folder, ConfigError, init="random")
    monkeypatch.setattr(adapter, "find_spec", lambda _: None)
    refusal(r"needs the package peft; install 'keep-agent\[peft\]'", base, folder, ConfigError)
