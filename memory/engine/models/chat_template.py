"""Chat templates: the program that a model brings to make a prompt of messages. Its faults become one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from keep_agent.errors import ModelError
from keep_agent.files import reason

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WHERE = "chat_template.jinja, or chat_template in tokenizer_config.json"


def render(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[tuple[str, str]], go_on: bool = False, **values: bool
) -> str:
    """The text that the template makes of messages (role, content), up to where the assistant speaks.

    :param go_on: the last message is the assistant's, and is not over yet
    :param values: what the template may ask for besides
    :raises ModelError: the template refuses the messages, or fails
    """
    rows = [{"role": role, "content": content} for role, content in messages]
    try:
        text = tokenizer.apply_chat_template(
            rows, tokenize=False, add_generation_prompt=not go_on, continue_final_message=go_on, **values
        )
        assert isinstance(text, str)
        text.encode()  # half of a surrogate pair is no text
    except Exception as error:  # a template can raise anything
        raise ModelError(
            f"the model's chat template makes no prompt of these messages ({reason(error)}); give other messages, or "
            f"correct the template ({WHERE})"
        ) from error
    return text


def parts_around(
    tokenizer: PreTrainedTokenizerBase, mark: str, messages: Sequence[tuple[str, str]], **values: bool
) -> list[str]:
    """What stands before, between and behind the places of ``mark`` in the text of messages.

    :raises ModelError: as `render`, or the template leaves out, repeats or changes contents
    """
    parts = render(tokenizer, messages, **values).split(mark)
    due = sum(content.count(mark) for _, content in messages)
    if len(parts) != due + 1:
        raise ModelError(
            f"the model's chat template does not repeat each content once ({due} marks were given, {len(parts) - 1} "
            f"came back); correct the template ({WHERE})"
        )
    return parts
