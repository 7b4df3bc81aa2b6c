"""Packs of training data: the token ids of one memory, and of query slots that see it but not each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

IGNORE = -100  # label of a row without a target
Encode = Callable[[str], Sequence[int]]
Part = tuple[str, bool]  # text, and whether its tokens are targets


@dataclass(frozen=True, slots=True)
class Slot:
    """Token ids with labels (`IGNORE` for none), and the memory lines that are hidden from them."""

    kind: str
    ids: tuple[int, ...]
    labels: tuple[int, ...]
    hidden: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Pack:
    """Memory lines (id, token ids) in prompt order, and the slots that see them."""

    memory: tuple[tuple[str, tuple[int, ...]], ...]
    slots: tuple[Slot, ...]

    @property
    def memory_tokens(self) -> int:
        return sum(len(ids) for _, ids in self.memory)


def make_slot(kind: str, parts: Sequence[Part], encode: Encode, hidden: frozenset[str] = frozenset()) -> Slot:
    """Build a slot from texts, each of which is encoded alone."""
    ids: list[int] = []
    labels: list[int] = []
    for text, is_target in parts:
        piece = encode(text)
        ids += piece
        labels += piece if is_target else [IGNORE] * len(piece)
    return Slot(kind, tuple(ids), tuple(labels), hidden)


def rounded(length: int, unit: int = 16) -> int:
    """Return the padded length, a multiple of ``unit``."""
    return -(-length // unit) * unit
