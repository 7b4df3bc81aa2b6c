"""Special tokens of a model: those that end what it says, and those that are left out of its text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class SpecialTokens:
    """``hidden`` tokens may stand in an answer without being shown; ``ends`` end it and are no part of it."""

    ends: frozenset[int]
    hidden: frozenset[int] = frozenset()


def special_tokens(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> SpecialTokens:
    """The special tokens of a model as its folder has them.

    Ends are what the tokenizer, config.json or generation_config.json call the end of a sequence (EOS). Where none of
    them names one, every special token is an end.
    """
    added = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    special = frozenset(added | set(tokenizer.all_special_ids))
    named = tokenizer, model.config.get_text_config(), model.generation_config
    ends = frozenset(number for one in named for number in _numbers(getattr(one, "eos_token_id", None)))
    return SpecialTokens(ends, special - ends) if ends else SpecialTokens(special)


def _numbers(value: Any) -> list[int]:
    """Configurations give one id, several, or None."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]
