"""Models with an adapter: by the name of a bundled one, by folder, and the record of how their prompts look."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig
from transformers import AutoModelForCausalLM

from keep_agent.config import planner_factory
from keep_agent.config.planner_factory import Abilities, _abilities, make_model, make_tokenizer
from keep_agent.errors import ModelError
from memory.engine.models.tokenizer import load_tokenizer
from memory.files.checksums import CHECKSUMS, check_sums
from planners.bundled import ABILITIES, ADAPTERS

peft = pytest.importorskip("peft", reason="needs the extra peft")
MEBIBYTE = 1 << 20


def settings(name: object, *overrides: str) -> DictConfig:
    with initialize_config_module("configs", version_base="1.3"):
        return compose("alfred", ["model=custom", f"model.name='{name}'", "model.dtype=float32", *overrides]).model


@pytest.fixture
def adapter(tiny_model: Path, tmp_path: Path) -> Path:
    options = peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    peft.get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), options).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def test_a_bundled_name_stands_for_a_base_model_and_its_adapter(
    tiny_model: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = adapter.rename(tmp_path / "bundled")
    monkeypatch.setattr(planner_factory, "ADAPTERS", {"planner-test": (str(tiny_model), bundled)})
    loaded = make_model(settings("planner-test"))
    assert loaded.adapter.folder == bundled and loaded.folder == tiny_model
    tokenizer = make_tokenizer(settings("planner-test"), loaded)
    assert tokenizer.get_vocab() == load_tokenizer(str(tiny_model)).get_vocab()
    peft_folder = tmp_path / "own"
    peft_folder.mkdir()
    for file in bundled.iterdir():
        (peft_folder / file.name).write_bytes(file.read_bytes())
    assert make_model(settings("planner-test", f"model.adapter='{peft_folder}'")).adapter.folder == peft_folder


@pytest.mark.parametrize("name", ADAPTERS)
def test_bundled_adapters_are_small_and_have_checksums_and_a_valid_record(name: str) -> None:
    _, folder = ADAPTERS[name]
    files = [file for file in folder.iterdir() if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 20 * MEBIBYTE
    check_sums(folder / CHECKSUMS)
    abilities = _abilities(SimpleNamespace(adapter=SimpleNamespace(folder=folder)))
    assert abilities == Abilities(says_goals=True, focus="line", preamble=8)


@pytest.mark.parametrize(
    "record",
    [
        {"preamble": "8"}, {"preamble": -3}, {"preamble": 17}, {"preamble": True}, {"preamble": 1.5}, {"focus": "loud"},
        {"says_goals": 1}, {"colour": "red"}, [],
    ],
    ids=str,
)  # fmt: skip
def test_a_record_with_a_wrong_value_is_refused(record: Any, tmp_path: Path) -> None:
    (tmp_path / ABILITIES).write_text(json.dumps(record))
    with pytest.raises(ModelError, match=r"planner\.json: .* which no planner was trained with; fetch the adapter"):
        _abilities(SimpleNamespace(adapter=SimpleNamespace(folder=tmp_path)))
