"""Text format of probes in plain English: raw text, or a user turn if the tokenizer has a chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from planners.prompts.formats import PLACEHOLDER, PlainFormat, Splicer, template_parts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TextFormat:
    """Format of a user turn followed by the beginning of the answer.

    ``turn`` is the text between the question and the first words of the answer. Without a chat template it is a
    newline, and the prompt begins with the start token as in the `default` prompt format. A template defines both, with
    thinking disabled where it is optional; the token ``start``, if set, precedes the template.
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
        """Return the token ids of ``text``; a newline at its end is always a separate token."""
        whole = text.removesuffix("\n")
        return self._splice.raw(whole) + [self._splice.newline] * (len(text) - len(whole))

    def stops(self) -> set[int]:
        """Return the end-of-text token, which alone ends an answer: an answer may have several lines."""
        end = self._tokenizer.eos_token_id
        return set() if end is None else {end}

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)
