"""Literal values: any text survives Hydra's overrides and OmegaConf's configs as it is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from keep_agent.config.literal import as_config, as_override, interpolations, quote
from keep_agent.config.model_names import choose_model, expand_model
from keep_agent.errors import ConfigError

MEANT = st.sampled_from("\\${}[]()'\", =:~+@#%*&|<>/.-ab1")  # characters with a meaning for Hydra, OmegaConf or YAML
TEXT = st.text(st.one_of(MEANT, st.characters(categories=["L", "M", "N", "P", "S", "Zs"])), min_size=1).filter(
    lambda text: text != "???"
)
VALUES = st.recursive(TEXT | st.integers() | st.booleans() | st.none(), lambda inner: st.lists(inner, max_size=3))


def parsed(override: str) -> str:
    """Parse an override's value as Hydra and OmegaConf do."""
    value = OverridesParser.create().parse_override(override).value()
    return OmegaConf.create({"value": value}).value


@given(TEXT)
@settings(max_examples=500)
def test_any_text_is_an_override_of_itself(text: str) -> None:
    for path in (text, f"/{text}", f"{text}\\"):
        assert parsed(as_override("model.name", path)) == path
        assert parsed(choose_model(f"./{path}")[1]) == f"./{path}"


@pytest.mark.parametrize(
    ("argument", "names"),
    [
        ("/a b,/it's", ["/a b", "/it's"]),
        ("'/a,b'", ["/a,b"]),
        ("'/a,b',\"/it's\"", ["/a,b", "/it's"]),
        ("'/${x}'", ["/${x}"]),
    ],
)
def test_names_are_separated_by_commas_outside_of_quotes(argument: str, names: list[str]) -> None:
    assert expand_model([f"model={argument}"]) == ["model=custom", f"model.name={','.join(map(quote, names))}"]
    assert quote("/it's") == "'/it\\'s'"


@given(st.dictionaries(st.text("abc", min_size=1), VALUES, max_size=3))
@settings(max_examples=200)
def test_plain_values_survive_a_config(values: dict[str, Any]) -> None:
    config = as_config(values)
    assert OmegaConf.to_container(config, resolve=True) == values
    assert not list(interpolations(OmegaConf.to_container(config, resolve=False)))


def test_interpolations_in_texts_are_not_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "told")
    texts = ["${oc.env:SECRET}", "\\${oc.env:SECRET}", "${a}", "${oc.decode:'[1]'}"]
    config = as_config({"a": texts, "b": {"c": texts[0]}})
    assert "told" not in json.dumps(OmegaConf.to_container(config, resolve=True)) and list(config.a) == texts
    assert list(interpolations(texts)) == [texts[0], texts[2], texts[3]]


def test_a_name_that_means_a_missing_value_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"write './\?\?\?'"):
        choose_model("???")
