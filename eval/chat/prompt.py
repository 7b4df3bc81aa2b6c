"""Prompt of a question: ``[instruction][memory][question]``, in the model's chat template if it has one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eval.chat.conversation import Question, one_line
from keep_agent.errors import ConfigError, did_you_mean
from planners.prompts.formats import PLACEHOLDER, Splicer, template_parts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHOICES = ("letters", "texts")
ANSWER_START = "Answer:"  # ends a prompt if there is no chat template


class QuestionPrompt:
    """Encoder of a prompt's parts as token ids.

    :param instruction: text before the memory
    :param choices: ``letters``: list the choices in the prompt, and score their letters; ``texts``: score their texts
    :param start: first token of the prompt; None: the tokenizer's start token, unless a chat template contains it
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, instruction: str, choices: str = "letters", start: str | None = None
    ) -> None:
        if choices not in CHOICES:
            hint = did_you_mean(str(choices), CHOICES)
            raise ConfigError(f"choices={choices} is unknown; choose one of: {', '.join(CHOICES)}{hint}")
        self._tokenizer, self._splice = tokenizer, Splicer(tokenizer)
        self._letters = choices == "letters"
        self._chat = bool(getattr(tokenizer, "chat_template", None))
        parts = template_parts(tokenizer, one_line(instruction) + f"\n{PLACEHOLDER}") if self._chat else None
        before, self._turn_end = parts or (one_line(instruction) + "\n", ANSWER_START)
        default = None if self._chat else tokenizer.bos_token_id  # a chat template contains the start token
        first = default if start is None else self._splice.token(start)
        self._context = ([] if first is None else [first]) + self._splice.lines(before)

    def context(self) -> list[int]:
        return list(self._context)

    def line(self, text: str) -> list[int]:
        """Return the token ids of a segment."""
        return self._splice.lines(text)

    def empty_query(self) -> list[int]:
        """Return the query of a prefill without a question: a newline."""
        return [self._splice.newline]

    def query(self, question: Question) -> list[int]:
        """Return the token ids after the memory, up to the start of the answer."""
        lines = [f"Today is {one_line(question.date)}."] if question.date else []
        lines.append(f"Question: {one_line(question.text)}")
        if question.choices and self._letters:
            lines += [f"({_letter(i)}) {one_line(choice)}" for i, choice in enumerate(question.choices)]
            lines.append("Reply with the letter of the right choice.")
        text = "\n".join(lines)
        return self._splice.lines(text + self._turn_end if self._chat else f"{text}\n{self._turn_end}")

    def candidates(self, question: Question) -> list[list[int]]:
        """Return the token ids to score for each choice."""
        gap = "" if self._chat else " "
        texts = [f"({_letter(i)})" if self._letters else one_line(c) for i, c in enumerate(question.choices)]
        return [self._splice.raw(gap + text) for text in texts]

    @property
    def reduce(self) -> str:
        """Reduction of token scores: the mean for texts, which differ in length; the sum for letters."""
        return "sum" if self._letters else "mean"

    def stops(self) -> set[int]:
        """Return the tokens that end an answer."""
        return {token for token in (self._splice.newline, self._tokenizer.eos_token_id) if token is not None}

    def decode(self, ids: Sequence[int]) -> str:
        """Return the first line of the answer."""
        lines = self._tokenizer.decode(ids, skip_special_tokens=True).strip().splitlines()
        return lines[0].strip() if lines else ""


def _letter(index: int) -> str:
    return chr(ord("a") + index)
