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

EXPECTED = "tokenizer.json (or tokenizer.model, or vocab.json with merges.txt)"


def load_tokenizer(name: str, rows: int | None = None) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a folder or hub name, for a model with ``rows`` token embeddings.

    :raises ModelError: there is none, it is damaged, or it has tokens beyond the embeddings
    """
    remedy = f"copy the model's {EXPECTED} there, or name another tokenizer: model.tokenizer or --tokenizer"
    with loading(f"the tokenizer of {name!r}", remedy):
        reader = PreTrainedTokenizerFast if _has_generic_class(Path(name)) else AutoTokenizer
        tokenizer = reader.from_pretrained(name, trust_remote_code=False)
    if len(tokenizer.get_vocab()) <= len(tokenizer.added_tokens_decoder):  # the library built an empty tokenizer
        raise ModelError(f"there is no tokenizer in {name!r}, which has no {EXPECTED}; {remedy}")
    if rows is not None:
        _check_rows(tokenizer, name, rows)
    return tokenizer


def _has_generic_class(folder: Path) -> bool:
    """Tell whether a folder names the generic class, which AutoTokenizer would replace by the family's class."""
    file = folder / "tokenizer_config.json"
    return file.is_file() and json.loads(file.read_text("utf-8")).get("tokenizer_class") == "PreTrainedTokenizerFast"


def _check_rows(tokenizer: PreTrainedTokenizerBase, name: str, rows: int) -> None:
    """Raise ModelError for tokens beyond the ``rows`` of the embeddings; rows without a token are padding.

    Special tokens other than BOS, EOS and padding, such as placeholders of images, may exceed the rows if the template
    does not use them. Gemma 3's text models, for example, share the tokenizer of its multimodal models.
    """
    added, structure = tokenizer.added_tokens_decoder, (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token)
    template = str(tokenizer.chat_template)
    last, token = max(
        (id, token)
        for token, id in tokenizer.get_vocab().items()
        if id not in added or not added[id].special or token in structure or token in template
    )
    if last >= rows:
        raise ModelError(
            f"the tokenizer of {name!r} has tokens up to {last} ({token!r}), but the model has {rows} token "
            f"embeddings, up to {rows - 1}; use the model's own tokenizer, or resize the embeddings."
        )
