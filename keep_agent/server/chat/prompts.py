"""Messages become a prompt's text: by the model's chat template where it has one, else a line for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keep_agent.errors import ModelError
from keep_agent.server.error_handlers import Refused
from memory.engine.models.chat_template import render

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
    :raises BadMessages: the chat template refuses them, or fails
    """
    if tokenizer.chat_template is None:
        return _plain(messages, go_on)
    try:
        text = render(tokenizer, [(said.role, said.content) for said in messages], go_on)
    except ModelError as error:  # which of the two is wrong cannot be told
        raise BadMessages(str(error)) from error
    return text.removeprefix(tokenizer.bos_token or "")


def _plain(messages: Sequence[ChatMessage], go_on: bool) -> str:
    lines = [f"{said.role}: {said.content}\n" for said in messages]
    return "".join(lines)[:-1] if go_on else "".join([*lines, "assistant:"])
