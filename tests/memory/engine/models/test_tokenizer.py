"""Tokenizers of models: one that is missing, damaged or of another model is refused when it is loaded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from keep_agent.errors import ModelError
from memory.engine.models.tiny_models import tiny_model
from memory.engine.models.tokenizer import load_tokenizer

IMAGE = AddedToken("<image>", special=True)
ZEBRA = AddedToken("zebra")


def saved(chat: PreTrainedTokenizerFast, folder: Path, *added: AddedToken) -> str:
    """A copy of the tokenizer with more tokens."""
    chat.save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.add_tokens(list(added))
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_tokens_beyond_the_embeddings_are_refused(chat: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    name, rows = saved(chat, tmp_path, ZEBRA), len(chat)
    message = rf"tokens up to {rows} \('zebra'\), but the model has {rows} token embeddings, up to {rows - 1}"
    with pytest.raises(ModelError, match=message):
        load_tokenizer(name, rows)
    assert len(load_tokenizer(name, rows + 1)) == rows + 1
    assert load_tokenizer(name, rows + 64).encode("zebra") == [rows]  # padded embeddings


def test_a_placeholder_that_text_does_not_use_may_lie_beyond(chat: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    rows = len(chat)
    assert load_tokenizer(saved(chat, tmp_path / "placeholder", IMAGE), rows)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "placeholder")
    tokenizer.chat_template = f"{IMAGE.content}{chat.chat_template}"
    tokenizer.save_pretrained(tmp_path / "used")
    with pytest.raises(ModelError, match="<image>"):
        load_tokenizer(str(tmp_path / "used"), rows)


@pytest.mark.parametrize("family", ["qwen2", "llama", "gemma3_text", "gpt_oss"])
def test_a_model_without_a_tokenizer_says_what_is_expected(family: str, tmp_path: Path) -> None:
    tiny_model(family, layers=2).module.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"tokenizer (of|in) .*tokenizer\.json \(or .*model\.tokenizer") as caught:
        load_tokenizer(str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"{", b"[]", b"", b"{}"])
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_tokenizer_is_one_sentence(
    chat: PreTrainedTokenizerFast, tmp_path: Path, name: str, content: bytes
) -> None:
    folder = Path(saved(chat, tmp_path / "whole"))
    damaged = Path(shutil.copytree(folder, tmp_path / "damaged"))
    (damaged / name).write_bytes(content)
    if name == "tokenizer_config.json" and content == b"{}":
        (damaged / "tokenizer.json").unlink()
    with pytest.raises(ModelError) as caught:
        load_tokenizer(str(damaged))
    assert str(damaged) in str(caught.value) and "\n" not in str(caught.value)
