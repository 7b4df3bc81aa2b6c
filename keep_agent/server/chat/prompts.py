"""Messages become a prompt's text: by the model's chat template where it has one, else a line for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jinja2 import TemplateError

from keep_agent.server.problems import Refused

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class ChatMessage:
    role: str
    content: str


class BadMessages(Refused):
    """Messages that make no prompt for this model."""


def prompt_of(tokenizer: PreTrainedTokenizerBase, messages: Sequence[ChatMessage], go_on: bool = False) -> str:
    """The text up to where the assistant speaks. Without the beginning that each prompt has by itself (BOS).

    :param go_on: the last message is the assistant's, and is not over yet
    """
    if tokenizer.chat_template is None:
        return _plain(messages, go_on)
    rows = [{"role": said.role, "content": said.content} for said in messages]
    try:
        text = tokenizer.apply_chat_template(
            rows, tokenize=False, add_generation_prompt=not go_on, continue_final_message=go_on
        )
    except (TemplateError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise BadMessages(f"messages do not fit the model's chat template ({reason}); give other roles") from error
    assert isinstance(text, str)
    return text.removeprefix(tokenizer.bos_token or "")


def _plain(messages: Sequence[ChatMessage], go_on: bool) -> str:
    lines = [f"{said.role}: {said.content}\n" for said in messages]
    return "".join(lines)[:-1] if go_on else "".join([*lines, "assistant:"])
