"""Tokenizer of a model folder or hub name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from keep_agent.errors import ModelError
from keep_agent.files import loading

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

GENERIC = "PreTrainedTokenizerFast"
EXPECTED = "tokenizer.json (or tokenizer.model, or vocab.json with merges.txt)"


def load_tokenizer(name: str, rows: int | None = None) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a folder or hub name, for a model with ``rows`` token embeddings.

    :raises ModelError: there is none, it is damaged, or it has tokens beyond the embeddings
    """
    remedy = f"copy the model's {EXPECTED} there, or name another tokenizer: model.tokenizer or --tokenizer"
    with loading(f"the tokenizer of {name!r}", remedy):
        reader = PreTrainedTokenizerFast if _generic(Path(name)) else AutoTokenizer
        tokenizer = reader.from_pretrained(name, trust_remote_code=False)
    if len(tokenizer.get_vocab()) <= len(tokenizer.added_tokens_decoder):  # the library makes one up from its class
        raise ModelError(f"there is no tokenizer in {name!r}, which has no {EXPECTED}; {remedy}")
    if rows is not None:
        _check_rows(tokenizer, name, rows)
    return tokenizer


def _generic(folder: Path) -> bool:
    """Check for a folder that names no special class: AutoTokenizer would take the model family's."""
    file = folder / "tokenizer_config.json"
    return file.is_file() and json.loads(file.read_text("utf-8")).get("tokenizer_class") == GENERIC


def _check_rows(tokenizer: PreTrainedTokenizerBase, name: str, rows: int) -> None:
    """Raises ModelError for tokens beyond the embeddings. Embeddings without a token are padding.

    Placeholders of images and sounds may lie beyond: Gemma 3's text models share the tokenizer of those that see.
    """
    beyond = {token: number for token, number in tokenizer.get_vocab().items() if number >= rows}
    text_tokens = {token: number for token, number in beyond.items() if not _is_placeholder(tokenizer, token, number)}
    if text_tokens:
        highest = max(text_tokens, key=text_tokens.__getitem__)
        raise ModelError(
            f"the tokenizer of {name!r} has tokens up to {text_tokens[highest]} ({highest!r}), but the model has "
            f"{rows} token embeddings, up to {rows - 1}; use the model's own tokenizer, or resize the embeddings."
        )


def _is_placeholder(tokenizer: PreTrainedTokenizerBase, token: str, number: int) -> bool:
    """Check for a special token that neither begins, ends nor structures a text."""
    added = tokenizer.added_tokens_decoder.get(number)
    structure = (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token)
    return added is not None and added.special and token not in structure and token not in str(tokenizer.chat_template)
