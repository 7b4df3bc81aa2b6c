"""Chat templates: what goes wrong in one is one sentence, whatever it raises."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from keep_agent.errors import ModelError
from memory.engine.models.chat_template import parts_around, render
from planners.prompts.formats import LotaFormat

FAILING: dict[str, Any] = {
    "include": "{% include 'x' %}",
    "arithmetic": "{{ 1 / 0 }}",
    "types": "{{ messages[0].content + 1 }}",
    "endless": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "syntax": "{% for %}",
    "refusal": "{{ raise_exception('roles\\nmust alternate') }}",
    "surrogate": "{{ '\ud800' }}",
    "number": 5,
    "nameless": {},
}


def with_template(chat: PreTrainedTokenizerFast, template: Any) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=chat.backend_tokenizer, eos_token=chat.eos_token, chat_template=template
    )


@pytest.mark.parametrize("kind", FAILING)
def test_a_template_that_fails_is_one_sentence(chat: PreTrainedTokenizerFast, kind: str) -> None:
    failing = with_template(chat, FAILING[kind])
    with pytest.raises(
        ModelError, match=r"chat template makes no prompt .*; give other messages, or correct"
    ) as caught:
        render(failing, [("user", "go")])
    assert "\n" not in str(caught.value)


def test_messages_are_rendered_up_to_where_the_assistant_speaks(chat: PreTrainedTokenizerFast) -> None:
    begun = "<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n"
    assert render(chat, [("user", "go")]) == begun
    assert render(chat, [("user", "go"), ("assistant", "I")], go_on=True) == f"{begun}I"
    assert parts_around(chat, "#", [("user", "a#b#")]) == [
        "<|im_start|>user\na",
        "b",
        "<|im_end|>\n<|im_start|>assistant\n",
    ]


@pytest.mark.parametrize("template", ["no content", "{{ messages[0].content * 2 }}", "{{ 1 / 0 }}"])
def test_a_template_without_a_place_for_the_memory_is_refused(chat: PreTrainedTokenizerFast, template: str) -> None:
    with pytest.raises(ModelError, match="the model's chat template"):
        LotaFormat(with_template(chat, template))
