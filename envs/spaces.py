"""A gymnasium space for words: any string up to a length, sampled from examples that make sense."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Text


class Words(Text):
    """Strings of at most ``max_length`` characters; ``sample`` draws one of ``examples``.

    gymnasium's Text would refuse everything outside its charset and sample letter soup.
    """

    def __init__(
        self, max_length: int, examples: Sequence[str] = ("",), seed: int | np.random.Generator | None = None
    ) -> None:
        super().__init__(max_length, min_length=0, seed=seed)
        self.examples = tuple(examples)

    def contains(self, x: object) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """One of the examples; masks over characters have no meaning here."""
        return self.examples[int(self.np_random.integers(len(self.examples)))]

    def __repr__(self) -> str:
        return f"Words({self.max_length})"
