"""Checked fields of a YAML file; errors name file, place and remedy."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from keep_agent.errors import DataError
from keep_agent.files import parsed_yaml, read_text

MAX_KEY_LENGTH = 24  # maximum characters of a key; a stored agent's id has two keys and must fit in a file name


@dataclass(frozen=True)
class Field:
    """A value and its place in a file. `text`, `word`, ... return the value, or raise DataError for a wrong type."""

    value: Any
    file: str
    place: str = ""

    def error(self, problem: str) -> DataError:
        return DataError(f"{self.file}: {self.place or 'top level'}: {problem}")

    def keys(self, known: Collection[str], needed: Collection[str] = ()) -> None:
        """Check that the value is a mapping with all ``needed`` keys and only ``known`` ones."""
        keys = [key for key, _ in self.items()]
        for key in keys:
            if key not in known:
                raise self.error(f"unknown key {key!r}; use {', '.join(known)}")
        for key in needed:
            if key not in keys:
                raise self.error(f"{key} is missing; add it")

    def items(self) -> Iterator[tuple[str, Field]]:
        if not isinstance(self.value, dict):
            raise self.error(f"{self.value!r} is not a mapping; write KEY: VALUE lines")
        for key, value in self.value.items():
            if not isinstance(key, str):
                raise self.error(f"key {key!r} is not text; put it in quotes, or use a word")
            yield key, Field(value, self.file, self._below(key))

    def elements(self) -> Iterator[Field]:
        """Yield the items of a non-empty list."""
        if not isinstance(self.value, list) or not self.value:
            raise self.error(f"{self.value!r} is not a list with an item; write [A, B], or a line '- A' per item")
        for number, value in enumerate(self.value):
            yield Field(value, self.file, f"{self.place}[{number}]")

    def get(self, key: str, default: Any = None) -> Field:
        return dict(self.items()).get(key, Field(default, self.file, self._below(key)))

    def _below(self, key: str) -> str:
        return f"{self.place}.{key}" if self.place else key

    def text(self) -> str:
        """Return the text with exactly one newline at its end."""
        if not isinstance(self.value, str) or not self.value.strip():
            raise self.error(f"{self.value!r} is not text; write some text after a | or in quotes")
        return self.value.strip("\r\n") + "\n"

    def line(self) -> str:
        return " ".join(self.text().split())

    def word(self, mark: str = "_") -> str:
        """Return a name, which may contain lower-case letters, digits and ``mark``."""
        pattern = rf"[a-z][a-z0-9{mark}]{{0,{MAX_KEY_LENGTH - 1}}}"
        if not isinstance(self.value, str) or not re.fullmatch(pattern, self.value):
            characters = f"up to {MAX_KEY_LENGTH} characters of a-z, 0-9 and {mark}, the first a letter"
            raise self.error(f"{self.value!r} is not a name; use {characters}")
        return self.value

    def switch(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.error(f"{self.value!r} is neither true nor false; write one of them")
        return self.value

    def count(self) -> int:
        if not isinstance(self.value, int) or isinstance(self.value, bool) or self.value < 1:
            raise self.error(f"{self.value!r} is not a count; use 1 or more")
        return self.value

    def names(self, known: Collection[str], what: str) -> tuple[str, ...]:
        """Return the names in a list. Each must be one of ``known`` and occur once."""
        names: list[str] = []
        for field in self.elements():
            field.one_of(known, what)
            if field.value in names:
                raise field.error(f"{field.value} occurs twice; list each name once")
            names.append(field.value)
        return tuple(names)

    def one_of(self, known: Collection[str], what: str) -> str:
        if not isinstance(self.value, str) or self.value not in known:
            raise self.error(f"{self.value!r} is not {what}; use one of: {', '.join(known) or '(there are none)'}")
        return self.value


class _Loader(yaml.SafeLoader):
    """YAML loader for plain values. It rejects duplicate keys, of which PyYAML would keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = next((key for number, key in enumerate(keys) if key in keys[:number]), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"{twice!r} occurs twice", node.start_mark)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Field:
    return Field(parsed_yaml(read_text(path), path, "correct it", _Loader), str(path))
