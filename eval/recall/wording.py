"""How probes in plain English become token ids: as they are, or as a user's turn where there is a chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from planners.prompts.formats import PLACEHOLDER, PlainFormat, Splicer, template_parts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TextFormat:
    """Texts of a user's turn and the beginning of the answer to it.

    Without a chat template a prompt begins with the start token as in the `default` prompt format, and ``turn``, what
    stands between a question and the answer's first words, is a newline. A template gives both, without thinking where
    it leaves the choice; a token named ``start`` goes before it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, start: str | None = None) -> None:
        self._tokenizer, self._splice = tokenizer, Splicer(tokenizer)
        if not getattr(tokenizer, "chat_template", None):
            self._context, self.turn = PlainFormat(tokenizer, start).context(), "\n"
            return
        before, self.turn = template_parts(tokenizer, PLACEHOLDER, enable_thinking=False)
        first = [] if start is None else [self._splice.token(start)]
        self._context = first + self._splice.raw(before)

    def context(self) -> list[int]:
        return self._context

    def line(self, text: str) -> list[int]:
        """Token ids of ``text``; only the newline at its end is sure to be a token of its own."""
        whole = text.removesuffix("\n")
        return self._splice.raw(whole) + [self._splice.newline] * (len(text) - len(whole))

    def stops(self) -> set[int]:
        """An answer may take several lines, so only the end of the text ends it."""
        end = self._tokenizer.eos_token_id
        return set() if end is None else {end}

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)
