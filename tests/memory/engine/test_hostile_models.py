"""Folders of models, tokenizers and encoders with code of their own, which is not run."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keep_agent.errors import KeepError
from memory.engine.models.load import load_model
from memory.engine.models.tokenizer import load_tokenizer
from memory.segments.sentence_encoder import make_encoder
from tests.memory.engine.models.folders import refusal, set_config

AUTO_MAP = {
    **dict.fromkeys(("AutoConfig", "AutoModelForCausalLM", "AutoModel"), "evil.Evil"),
    "AutoTokenizer": [None, "evil.Evil"],
}


class Touch:
    """An object whose unpickling makes a file."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return Path.touch, (self._mark,)


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A model with a module beside it that Python can import. Nothing may run it, or ask at the terminal to run it."""
    folder, executed = tmp_path / "model", tmp_path / "EXECUTED"
    shutil.copytree(tiny_model, folder)
    (folder / "evil.py").write_text(f"from pathlib import Path\nPath({str(executed)!r}).touch()\n")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    questions: list[object] = []
    monkeypatch.setattr("builtins.input", questions.append)
    yield folder
    assert not executed.exists() and not questions


def encode(folder: Path) -> object:
    return make_encoder(str(folder)).encode(["a mug"])


@pytest.mark.parametrize("model_type", [None, "evil"])
def test_a_models_own_code_is_not_run(folder: Path, model_type: str | None) -> None:
    (folder / "SHA256SUMS").unlink(missing_ok=True)
    set_config(folder, auto_map=AUTO_MAP, **({"model_type": model_type} if model_type else {}))
    if model_type is None:  # transformers knows the family, and needs no code of the folder
        load_model(folder, "float32")
    else:
        refusal(".", folder, "float32")


@pytest.mark.parametrize("kind", ["Evil", "PreTrainedTokenizerFast"])
def test_a_tokenizers_own_code_is_not_run(folder: Path, kind: str) -> None:
    set_config(folder, "tokenizer_config.json", auto_map=AUTO_MAP, tokenizer_class=kind)
    set_config(folder, auto_map=AUTO_MAP, model_type="evil")
    try:
        load_tokenizer(str(folder))
    except KeepError as error:
        assert "cannot load the tokenizer of" in str(error)


def test_pickled_weights_are_not_read(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Touch(folder.parent / "EXECUTED")))
    refusal("only safetensors weights are loaded", folder, "float32")
    refusal("cannot load encoder", folder, load=encode)


MODULES = [
    *(json.dumps([{"idx": 0, "name": "0", "path": "", "type": kind}]) for kind in ("evil.Evil", "os.system", 1)),
    *("[{}]", "nope", "[" * 100_000, "{}"),
]


@pytest.mark.parametrize("modules", MODULES, ids=range(7))
def test_an_encoder_of_foreign_or_damaged_modules_is_refused(folder: Path, modules: str) -> None:
    (folder / "modules.json").write_text(modules)
    assert str(folder) in refusal(r"cannot load encoder .*; give the whole folder", folder, load=encode)
