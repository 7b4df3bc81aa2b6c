"""Gymnasium space of texts: it contains every string up to a length, and samples from a list of examples."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Text
from gymnasium.vector.utils import read_from_shared_memory


class Unicode(Sequence[str]):
    """Sequence of all Unicode characters, ordered by code point and computed on access."""

    def __len__(self) -> int:
        return sys.maxunicode + 1

    def __getitem__(self, index: Any) -> Any:
        return list(map(chr, range(len(self))[index])) if isinstance(index, slice) else chr(index)

    def __contains__(self, value: object) -> bool:
        return isinstance(value, str) and len(value) == 1


UNICODE = Unicode()


class Words(Text):
    """Space of strings with at most ``max_length`` characters; ``sample`` draws one of ``examples``.

    A character's index is its code point, so that gymnasium's shared memory and `flatten` accept every text.
    """

    def __init__(
        self, max_length: int, examples: Sequence[str] = ("",), seed: int | np.random.Generator | None = None
    ) -> None:
        super().__init__(max_length, min_length=0, seed=seed)
        self.examples = tuple(examples)

    def contains(self, x: object) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return one of the examples; character masks are ignored."""
        return self.examples[int(self.np_random.integers(len(self.examples)))]

    @property
    def character_set(self) -> Unicode:
        return UNICODE

    @property
    def character_list(self) -> Unicode:
        return UNICODE

    def character_index(self, char: str) -> np.int32:
        return np.int32(ord(char))

    def __eq__(self, value: object) -> bool:
        return isinstance(value, Words) and self.max_length == value.max_length

    def __repr__(self) -> str:
        return f"Words({self.max_length})"


class SharedTexts(Sequence[str]):
    """Texts in a vector environment's shared memory, one per environment. A deep copy is a tuple of strings."""

    def __init__(self, rows: np.ndarray) -> None:
        """``rows``: (environments, max_length) code points, padded with `len(UNICODE)`."""
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self)[index]
        return "".join(chr(code) for code in self._rows[index] if code < len(UNICODE))

    def __deepcopy__(self, memo: Any) -> tuple[str, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        return repr(tuple(self))


@read_from_shared_memory.register(Words)
def _read_words(space: Words, shared_memory: Any, n: int = 1) -> SharedTexts:
    """Return a view of the texts. Gymnasium calls this function only once, so a copy would never show later texts."""
    return SharedTexts(np.frombuffer(shared_memory.get_obj(), dtype=np.int32).reshape(n, space.max_length))
