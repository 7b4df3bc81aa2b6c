"""Model files: exactly the hashed and checked files are loaded, others are refused in one sentence."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from keep_agent.errors import ModelError
from memory.config.choices import DTYPES
from memory.engine.models.load import load_model
from memory.engine.models.model_files import model_files, weight_files
from memory.engine.models.tiny_models import FAMILIES, tiny_model
from memory.engine.models.tokenizer import load_tokenizer
from memory.engine.transformers.engine import TransformersEngine
from memory.files.checksums import check_sums, sha256, write_sums
from tests.memory.engine.models.folders import refusal, save_weights, set_config

SHARDED = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, chat: PreTrainedTokenizerFast) -> Path:
    """A model in shards, with every file that is loaded with its weights."""
    folder = tmp_path_factory.mktemp("model")
    module = tiny_model("qwen2", layers=2).module
    module.generation_config.eos_token_id = [3]
    module.save_pretrained(folder, max_shard_size="100KB")
    chat.save_pretrained(folder)
    assert (folder / SHARDED).is_file() and len(list(folder.glob("*.safetensors"))) > 1
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


def key_of(folder: Path) -> str:
    return load_model(folder, "float32").spec.model_key


def merge(folder: Path) -> dict[str, torch.Tensor]:
    """Read all weights of a folder in shards."""
    return {name: tensor for path in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(path).items()}


def change(path: Path) -> None:
    """Write other content that can be loaded."""
    if path.suffix == ".safetensors":
        save_weights(path.parent, {name: tensor * 1.001 for name, tensor in load_file(path).items()}, path.name)
    else:
        path.write_bytes(path.read_bytes() + b"\n")


@contextmanager
def replaced(path: Path) -> Iterator[None]:
    """Change a file within the context."""
    content = path.read_bytes()
    change(path)
    yield
    path.write_bytes(content)


def test_replacing_any_file_that_is_loaded_gives_another_identity(folder: Path) -> None:
    """Law 10 of docs/engine.md: blocks of the old model are never reused."""
    (folder / "README.md").write_text("no part of the model")
    (folder / "training.json").write_text("{}")
    first, loaded = key_of(folder), [path.name for path in model_files(folder).digests]
    names = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", SHARDED}
    assert set(loaded) == {*names, "chat_template.jinja", *(path.name for path in folder.glob("*.safetensors"))}
    for name in loaded:
        with replaced(folder / name):
            assert key_of(folder) != first, name
    change(folder / "README.md")
    assert key_of(folder) == first


def test_one_changed_number_of_a_large_tensor_gives_another_identity(tmp_path: Path) -> None:
    save_file({"large": (tensor := torch.zeros(1 << 24))}, tmp_path / "model.safetensors")
    first = model_files(tmp_path).key
    tensor[12_345_678] = 1
    save_file({"large": tensor}, tmp_path / "model.safetensors")
    assert model_files(tmp_path).key != first


def test_every_file_that_is_opened_is_hashed(folder: Path) -> None:
    names, watching, root = set(), True, folder.resolve()

    def note(event: str, arguments: tuple) -> None:
        if watching and event == "open" and isinstance(arguments[0], (str, os.PathLike)):
            path = Path(arguments[0]).resolve()
            if path.is_relative_to(root):
                names.add(path.relative_to(root).as_posix())

    sys.addaudithook(note)
    load_model(folder, "float32")
    load_tokenizer(str(folder))
    watching = False
    assert {"config.json", "tokenizer_config.json"} <= names
    assert names <= {path.relative_to(folder).as_posix() for path in model_files(folder).digests}


def test_a_single_file_beside_the_shards_of_another_model_is_refused(folder: Path) -> None:
    tensors = merge(folder)
    save_weights(folder, {name: tensor / 2 for name, tensor in tensors.items()})
    refusal(r"has weights twice, in model\.safetensors and in the shards .*; remove", folder)
    (folder / SHARDED).write_text(json.dumps({"weight_map": dict.fromkeys(tensors, "model.safetensors")}))
    assert weight_files(folder) == [folder / "model.safetensors"]  # the index names it
    norm = load_model(folder, "float32").module.model.norm.weight
    assert torch.equal(norm, tensors["model.norm.weight"] / 2)


def test_shards_are_read_as_transformers_reads_them(folder: Path) -> None:
    loaded, expected = load_model(folder, "float32").module, AutoModelForCausalLM.from_pretrained(folder)
    for (name, a), b in zip(loaded.named_parameters(), expected.parameters(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("name", ["shard-00000-model-00001-of-00001.safetensors", "extra.safetensors"])
def test_weights_outside_the_index_are_not_loaded(folder: Path, name: str) -> None:
    """transformers takes the first name for a shard of a distributed run, and then loads all files."""
    first = key_of(folder)
    save_weights(folder, {key: tensor * 0 for key, tensor in merge(folder).items()}, name)
    loaded = load_model(folder, "float32")
    assert loaded.spec.model_key == first and float(loaded.module.model.norm.weight.abs().sum()) > 0


def test_a_change_of_a_file_while_it_is_loaded_is_detected(folder: Path) -> None:
    result = model_files(folder)
    with pytest.raises(ModelError, match=r"config\.json was changed while the model was loaded"), result.view():
        change(folder / "config.json")
    with model_files(folder).view():
        pass


def test_a_write_that_keeps_size_and_mtime_is_detected(folder: Path) -> None:
    result, path = model_files(folder), min(folder.glob("*.safetensors"))
    before = path.stat()
    with pytest.raises(ModelError, match=rf"{path.name} was changed while the model was loaded"), result.view():
        while path.stat().st_ctime_ns == before.st_ctime_ns:  # until the file clock ticks
            with path.open("r+b") as file:
                file.seek(-4, os.SEEK_END)
                file.write(b"\0\0\0\0")
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert path.stat().st_size == before.st_size and path.stat().st_mtime_ns == before.st_mtime_ns


MAPS = Path("/proc/self/maps")


@pytest.mark.skipif(not MAPS.exists(), reason="mappings are listed by Linux only")
@pytest.mark.parametrize(
    ("family", "dtype"), [*(("qwen2", dtype) for dtype in DTYPES), *((family, "bfloat16") for family in FAMILIES[1:])]
)
def test_later_changes_of_the_files_do_not_reach_a_loaded_model(family: str, dtype: str, tmp_path: Path) -> None:
    ids = torch.arange(20)
    tiny_model(family, layers=2).module.to(getattr(torch, dtype)).save_pretrained(tmp_path, max_shard_size="100KB")
    with TransformersEngine(load_model(tmp_path, dtype), "inline") as engine:
        assert str(tmp_path) not in MAPS.read_text()
        before = engine.forward_plain(ids)
        for path in tmp_path.glob("*.safetensors"):
            with path.open("r+b") as file:
                file.write(b"\xff" * path.stat().st_size)
                file.flush()
                file.truncate(10)
        assert torch.equal(engine.forward_plain(ids), before)


def test_every_file_in_the_list_of_checksums_is_checked(folder: Path) -> None:
    names = [path.name for path in folder.iterdir()]
    sums = {name: sha256((folder / name).read_bytes()) for name in names}
    write_sums(folder / "SHA256SUMS", sums)
    load_model(folder)
    for name in names:
        with replaced(folder / name):
            refusal(rf"{name} is corrupt or was changed: SHA-256 .* on purpose, put its new", folder)
    set_config(folder, rope_parameters={"rope_type": "default", "rope_theta": 77.0})
    refusal(r"config\.json is corrupt or was changed", folder)
    del sums["config.json"]
    write_sums(folder / "SHA256SUMS", sums)  # the remedy of the message
    load_model(folder)
    (folder / "generation_config.json").unlink()
    refusal(r"generation_config\.json is listed in .* but missing; restore it", folder)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"abc\n", r"SHA256SUMS has a line that is not a SHA-256 and a file name \('abc'\)"),
        (b"0" * 63 + b"  config.json\n", r"SHA256SUMS has a line that is not a SHA-256 and a file name \('000"),
        (b"\xff\xfe a\n", "cannot load the checksums in .*SHA256SUMS .UnicodeDecodeError"),
        (b"", "SHA256SUMS is empty; fetch or build it again, or remove it"),
        (b" \n\n", "SHA256SUMS is empty"),
        (b"0" * 64 + b"  ../outside\n", r"SHA256SUMS names '\.\./outside', which is not in its folder"),
        (b"0" * 64 + b"  /outside\n", "SHA256SUMS names '/outside', which is not in its folder"),
    ],
)
def test_a_broken_list_of_checksums_is_named(tmp_path: Path, content: bytes, match: str) -> None:
    (tmp_path / "SHA256SUMS").write_bytes(content)
    refusal(match, tmp_path / "SHA256SUMS", load=check_sums)


def test_a_list_of_checksums_may_be_missing_or_in_upper_case_but_no_folder(tmp_path: Path) -> None:
    sums = tmp_path / "SHA256SUMS"
    check_sums(sums)
    (tmp_path / "file").write_bytes(b"content")
    write_sums(sums, {"*file": sha256(b"content").upper()})
    check_sums(sums)
    sums.unlink()
    sums.mkdir()
    refusal(r"cannot load the checksums in .*SHA256SUMS .IsADirectoryError", sums, load=check_sums)


def test_the_refusal_of_an_adapter_names_its_base(folder: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "some/base"}')
    assert "or remove" not in refusal(
        r"holds an adapter of 'some/base' .*; give its base model, .*: model=BASE model.adapter=", adapter
    )
    (folder / "adapter_config.json").write_bytes(b"\xff")
    refusal(r"a model that it does not name .*, or remove adapter_config\.json", folder)


def test_the_refusal_of_another_format_names_the_supported_one(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF\x03")
    (tmp_path / "model.bin").write_bytes(b"")
    refusal("is a file; give a GGUF file, a folder with config.json, safetensors weights", tmp_path / "model.bin")
    (tmp_path / "model.bin").unlink()
    refusal(r"has no config\.json", tmp_path)
    (tmp_path / "config.json").write_text(tiny_model("qwen2", layers=2).module.config.to_json_string())
    refusal(r"found model\.gguf: name this file itself", tmp_path)


GENERATION = r"cannot load .*generation_config\.json .*; fetch it again"


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("generation_config.json", b"{", GENERATION),
        ("generation_config.json", b"[]", GENERATION),
        ("config.json", b"[]", "."),
        ("config.json", b"\xff\xfe", "."),
        ("config.json", b'{"model_type": "qwen2", "num_attention_heads": 0}', "."),
        ("config.json", b'{"model_type": "qwen2", "x": ' + b"[" * 100_000, "."),
        ("config.json", b'{"model_type": ["qwen2"]}', "."),
    ],
    ids=range(7),
)
def test_a_damaged_configuration_is_refused(folder: Path, name: str, content: bytes, match: str) -> None:
    (folder / name).write_bytes(content)
    assert str(folder) in refusal(match, folder)
