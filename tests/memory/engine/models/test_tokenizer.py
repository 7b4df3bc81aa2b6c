"""Tokenizers and chat templates: missing, damaged or unsuitable ones are refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from memory.engine.models.chat_template import SpecialTokens, parts_around, render, special_tokens
from memory.engine.models.load import load_model
from memory.engine.models.tiny_models import tiny_model
from memory.engine.models.tokenizer import load_tokenizer
from planners.prompts.formats import LotaFormat
from tests.memory.engine.models.folders import refusal, set_config

IMAGE = AddedToken("<image>", special=True)
ZEBRA = AddedToken("zebra")


def saved(chat: PreTrainedTokenizerFast, folder: Path, *added: AddedToken) -> str:
    """Save a copy of the tokenizer with more tokens."""
    chat.save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.add_tokens(list(added))
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_tokens_beyond_the_embeddings_are_refused(chat: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    name, rows = saved(chat, tmp_path, ZEBRA), len(chat)
    message = rf"tokens up to {rows} \('zebra'\), but the model has {rows} token embeddings, up to {rows - 1}"
    refusal(message, name, rows, load=load_tokenizer)
    assert len(load_tokenizer(name, rows + 1)) == rows + 1
    assert load_tokenizer(name, rows + 64).encode("zebra") == [rows]  # padded embeddings


def test_a_placeholder_outside_the_template_may_lie_beyond(chat: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    rows = len(chat)
    assert load_tokenizer(saved(chat, tmp_path / "placeholder", IMAGE), rows)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "placeholder")
    tokenizer.chat_template = f"{IMAGE.content}{chat.chat_template}"
    tokenizer.save_pretrained(tmp_path / "used")
    refusal("<image>", str(tmp_path / "used"), rows, load=load_tokenizer)


@pytest.mark.parametrize("family", ["qwen2", "llama", "gemma3_text", "gpt_oss"])
def test_the_refusal_of_a_missing_tokenizer_names_its_files(family: str, tmp_path: Path) -> None:
    tiny_model(family, layers=2).module.save_pretrained(tmp_path)
    refusal(r"tokenizer (of|in) .*tokenizer\.json \(or .*model\.tokenizer", str(tmp_path), load=load_tokenizer)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"{", b"[]", b"", b"{}"])
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_tokenizer_is_refused(
    chat: PreTrainedTokenizerFast, tmp_path: Path, name: str, content: bytes
) -> None:
    folder = Path(saved(chat, tmp_path / "whole"))
    damaged = Path(shutil.copytree(folder, tmp_path / "damaged"))
    (damaged / name).write_bytes(content)
    if name == "tokenizer_config.json" and content == b"{}":
        (damaged / "tokenizer.json").unlink()
    assert str(damaged) in refusal(".", str(damaged), load=load_tokenizer)


FAILING: dict[str, Any] = {
    "include": "{% include 'x' %}",
    "arithmetic": "{{ 1 / 0 }}",
    "types": "{{ messages[0].content + 1 }}",
    "endless": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "syntax": "{% for %}",
    "refusal": "{{ raise_exception('roles\\nmust alternate') }}",
    "surrogate": "{{ '\ud800' }}",
    "number": 5,
    "nameless": {},
}


def with_template(chat: PreTrainedTokenizerFast, template: Any) -> PreTrainedTokenizerFast:
    inner = chat.backend_tokenizer
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=chat.eos_token, chat_template=template)


@pytest.mark.parametrize("kind", FAILING)
def test_a_failing_template_is_refused(chat: PreTrainedTokenizerFast, kind: str) -> None:
    message = r"chat template cannot make a prompt .*; give other messages, or correct"
    refusal(message, with_template(chat, FAILING[kind]), [("user", "go")], load=render)


def test_messages_are_rendered_up_to_the_assistants_turn(chat: PreTrainedTokenizerFast) -> None:
    starts = "<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n"
    assert render(chat, [("user", "go")]) == starts
    assert render(chat, [("user", "go"), ("assistant", "I")], go_on=True) == f"{starts}I"
    parts = ["<|im_start|>user\na", "b", "<|im_end|>\n<|im_start|>assistant\n"]
    assert parts_around(chat, "#", [("user", "a#b#")]) == parts


@pytest.mark.parametrize("template", ["no content", "{{ messages[0].content * 2 }}", "{{ 1 / 0 }}"])
def test_a_template_without_a_place_for_the_memory_is_refused(chat: PreTrainedTokenizerFast, template: str) -> None:
    refusal("the model's chat template", with_template(chat, template), load=LotaFormat)


START, END = "<|im_start|>", "<|im_end|>"


def special_tokens_in(path: Path, tokenizer: PreTrainedTokenizerFast, **files: dict[str, Any]) -> SpecialTokens:
    """Return a random model's special tokens; ``files`` maps names of its JSON files to values to add."""
    tiny_model("qwen2", layers=2, bos_token_id=None, eos_token_id=None).module.save_pretrained(path)
    (path / "generation_config.json").unlink(missing_ok=True)
    for name, more in files.items():
        set_config(path, f"{name}.json", **more)
    return special_tokens(tokenizer, load_model(path, "float32").module)


@pytest.fixture
def unnamed(chat: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """A tokenizer with special tokens, none of which is its EOS token."""
    return PreTrainedTokenizerFast(tokenizer_object=chat.backend_tokenizer, extra_special_tokens=[START, END])


def test_eos_tokens_of_all_files_are_ends_and_other_special_tokens_are_hidden(
    tmp_path: Path, unnamed: PreTrainedTokenizerFast
) -> None:
    start, end = unnamed.convert_tokens_to_ids([START, END])
    generation, config = {"generation_config": {"eos_token_id": [end, 7]}}, {"config": {"eos_token_id": 9}}
    for files, ends in ((generation, {end, 7}), (config, {9}), (generation | config, {end, 7, 9})):
        result = special_tokens_in(tmp_path / "-".join(files), unnamed, **files)
        assert result == SpecialTokens(frozenset(ends), frozenset({start, end} - ends))
    unnamed.eos_token = END
    result = special_tokens_in(tmp_path / "tokenizer", unnamed, config={"eos_token_id": 9})
    assert result == SpecialTokens(frozenset({end, 9}), frozenset({start}))


def test_without_an_eos_token_every_special_token_is_an_end(tmp_path: Path, unnamed: PreTrainedTokenizerFast) -> None:
    unnamed.add_tokens([AddedToken("go", special=False)])
    special = frozenset(unnamed.convert_tokens_to_ids([START, END]))
    assert special_tokens_in(tmp_path / "model", unnamed) == SpecialTokens(special)
