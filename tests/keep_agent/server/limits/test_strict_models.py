"""Request models: a wrong body gives one error, for any number of wrong values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel, ValidationError

from keep_agent.server.chat.anthropic import Messages
from keep_agent.server.chat.generate import Generate
from keep_agent.server.chat.openai import Completion
from keep_agent.server.chat.request_fields import VendorModel
from keep_agent.server.limits.strict_models import First, Strict
from keep_agent.server.planning.routes import FactRow, Observe, Plan

MANY = 30_000


def models(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for model in base.__subclasses__():
        yield model
        yield from models(model)


def lists_without_end(annotation: Any, metadata: tuple[Any, ...] = ()) -> Iterator[Any]:
    """Lists in an annotation that do not end at their first wrong item."""
    if get_origin(annotation) is list and not any(isinstance(item, First) for item in metadata):
        yield annotation
    for part in get_args(annotation):
        if not isinstance(part, First):
            yield from lists_without_end(part, getattr(annotation, "__metadata__", ()))


def test_every_list_of_a_request_ends_at_its_first_wrong_item() -> None:
    request_models = [*models(Strict), *models(VendorModel)]
    assert {Observe, Plan, Generate, Completion, Messages} <= set(request_models)
    for model in request_models:
        for name, field in model.model_fields.items():
            assert not [*lists_without_end(field.annotation, tuple(field.metadata))], f"{model.__name__}.{name}"


THING = {"id": "mug_1", "category": "object", "type": "mug"}
TALK = {"model": "m", "max_tokens": 1}


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (Observe, {"facts": [1] * MANY}),
        (Observe, {"facts": [THING | {"states": [1] * MANY}]}),
        (Observe, {"facts": [THING | {f"k{number}": 0 for number in range(MANY)}]}),
        (Plan, {"instruction": "x", "skills": ["a"]} | {f"k{number}": 0 for number in range(MANY)}),
        (Plan, {"instruction": "x", "skills": [None] * MANY}),
        (Generate, {"prompt": "x", "stop": [1] * MANY}),
        (Completion, TALK | {"messages": [{"role": "user", "content": [1] * MANY}]}),
        (Completion, TALK | {"messages": [{"role": "user", "content": "x"}], "stop": [1] * MANY}),
        (Messages, TALK | {"messages": [{"role": "user", "content": [{}] * MANY}]}),
        (Messages, TALK | {"messages": [{"role": "user", "content": "x"}], "system": [{}] * MANY}),
    ],
)
def test_one_error_for_very_many_wrong_values(model: type[BaseModel], body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(body)
    assert caught.value.error_count() <= 4  # of a union, those of each kind


def test_an_unknown_field_is_named_with_the_one_that_was_meant() -> None:
    with pytest.raises(ValidationError, match="there is no field 'plase'; those known are id, .*did you mean 'place'"):
        FactRow.model_validate(THING | {"plase": "sink_1"})
