"""Which tokens end an answer, by the files of a model's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from memory.engine.models.load import load_model
from memory.engine.models.special_tokens import SpecialTokens, special_tokens

START, END = "<|im_start|>", "<|im_end|>"


def found_in(path: Path, tokenizer: PreTrainedTokenizerFast, **files: dict[str, Any]) -> SpecialTokens:
    """Of a tokenizer with a model of random weights whose JSON ``files`` hold more than they would."""
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(path)
    (path / "generation_config.json").unlink(missing_ok=True)
    for name, more in files.items():
        file = path / f"{name}.json"
        known = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(known | more))
    return special_tokens(tokenizer, load_model(path, "float32").module)


@pytest.fixture
def unnamed(chat: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """Its special tokens, of which it calls none an end."""
    return PreTrainedTokenizerFast(tokenizer_object=chat.backend_tokenizer, extra_special_tokens=[START, END])


def test_ends_are_what_any_file_names_and_other_special_tokens_are_hidden(
    tmp_path: Path, unnamed: PreTrainedTokenizerFast
) -> None:
    start, end = unnamed.convert_tokens_to_ids([START, END])
    files: dict[str, dict[str, Any]] = {"generation_config": {"eos_token_id": [end, 7]}, "config": {"eos_token_id": 9}}
    for names, ends in (
        (["generation_config"], {end, 7}), (["config"], {9}), (["config", "generation_config"], {end, 7, 9}),
    ):  # fmt: skip
        found = found_in(tmp_path / "-".join(names), unnamed, **{name: files[name] for name in names})
        assert found == SpecialTokens(frozenset(ends), frozenset({start, end} - ends))
    unnamed.eos_token = END
    found = found_in(tmp_path / "tokenizer", unnamed, config={"eos_token_id": 9})
    assert found == SpecialTokens(frozenset({end, 9}), frozenset({start}))


def test_where_no_file_names_an_end_every_special_token_is_one(
    tmp_path: Path, unnamed: PreTrainedTokenizerFast
) -> None:
    unnamed.add_tokens([AddedToken("go", special=False)])
    special = frozenset(unnamed.convert_tokens_to_ids([START, END]))
    assert found_in(tmp_path / "model", unnamed) == SpecialTokens(special)
