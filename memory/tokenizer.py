"""Tokenizers as models come with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from keep_agent.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

GENERIC = "PreTrainedTokenizerFast"


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or hub name. Raises ModelError."""
    try:
        reader = PreTrainedTokenizerFast if _generic(Path(name)) else AutoTokenizer
        return reader.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # tokenizers raises bare exceptions
        first = str(error).strip().splitlines()[0]
        raise ModelError(f"no tokenizer in {name!r} ({first}); name one: model.tokenizer or --tokenizer") from error


def _generic(folder: Path) -> bool:
    """Does the folder ask for a tokenizer of no special class? AutoTokenizer would take the model family's."""
    file = folder / "tokenizer_config.json"
    return file.is_file() and json.loads(file.read_text()).get("tokenizer_class") == GENERIC
