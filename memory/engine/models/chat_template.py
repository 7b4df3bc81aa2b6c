"""Chat template and special tokens of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keep_agent.errors import ModelError
from keep_agent.files import reason

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TEMPLATE_PLACE = "chat_template.jinja, or chat_template in tokenizer_config.json"


def render(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[tuple[str, str]], go_on: bool = False, **values: bool
) -> str:
    """Render messages (role, content) with the model's template, up to the assistant's turn.

    :param go_on: end the text within the last message, the assistant's, so that the model continues it
    :param values: further variables of the template
    :raises ModelError: the template refuses the messages, or fails
    """
    rows = [{"role": role, "content": content} for role, content in messages]
    ends = {"add_generation_prompt": not go_on, "continue_final_message": go_on}
    try:
        text = tokenizer.apply_chat_template(rows, tokenize=False, **ends, **values)
        assert isinstance(text, str)
        text.encode()  # raises for half a surrogate pair
    except Exception as error:  # a template can raise anything
        raise ModelError(
            f"the model's chat template cannot make a prompt of these messages ({reason(error)}); give other messages, "
            f"or correct the template ({TEMPLATE_PLACE})"
        ) from error
    return text


def parts_around(
    tokenizer: PreTrainedTokenizerBase, placeholder: str, messages: Sequence[tuple[str, str]], **values: bool
) -> list[str]:
    """Render messages whose contents contain ``placeholder``, and split the text at every occurrence of it.

    :raises ModelError: `render` fails, or the template omits, repeats or changes contents
    """
    parts = render(tokenizer, messages, **values).split(placeholder)
    due = sum(content.count(placeholder) for _, content in messages)
    if len(parts) != due + 1:
        raise ModelError(
            f"the model's chat template does not repeat each content once ({due} placeholders became "
            f"{len(parts) - 1}); correct the template ({TEMPLATE_PLACE})"
        )
    return parts


@dataclass(frozen=True)
class SpecialTokens:
    """Token ids: ``ends`` end an answer and are not part of it; ``hidden`` ones are part of it, but not shown."""

    ends: frozenset[int]
    hidden: frozenset[int] = frozenset()


def special_tokens(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> SpecialTokens:
    """Collect a model's special tokens.

    `ends` are the EOS tokens of tokenizer, config.json and generation_config.json; if none is set, all special tokens.
    """
    added = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    special = frozenset(added | set(tokenizer.all_special_ids))
    sources = tokenizer, model.config.get_text_config(), model.generation_config
    values = [getattr(source, "eos_token_id", None) for source in sources]  # one id, several, or None
    ends = frozenset(id for value in values for id in (value if isinstance(value, list | tuple) else [value])) - {None}
    return SpecialTokens(ends, special - ends) if ends else SpecialTokens(special)
