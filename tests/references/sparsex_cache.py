"""SparseX's segment cache (arXiv 2606.01751, sections 3.1 and 4.5) with nothing but transformers' own forward.

A prompt is walked from left to right over one dense cache: new text is run behind all that stands there, a segment that
an earlier prompt computed is copied from that prompt's cache, its keys turned by the difference of the positions. With
``refresh`` the oldest such segments count as new text, until that share of a prompt's memory is new, and are kept anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from transformers import DynamicCache, PreTrainedModel

from tests.references.isolated import dense_mask, turn

Text = tuple[int, ...]


@dataclass(frozen=True)
class Rows:
    first: int  # position
    layers: list[tuple[torch.Tensor, torch.Tensor]]  # rotated keys, and values
    behind: Text | None  # all memory before them; None where something copied stood among it


@dataclass(frozen=True)
class Part:
    """A segment of a prompt; ``key=None``: never kept, never looked up."""

    text: Text
    key: str | None = ""
    behind: Text = ()  # said before it, and part of its meaning


@dataclass
class SegmentCache:
    """Everything earlier prompts left behind, and what the last prompt took of it."""

    model: PreTrainedModel
    context: Text
    block_size: int
    refresh: float = 0.0
    stored: dict[Part, Rows] = field(default_factory=dict)  # those computed last stand last
    computed: list[Text] = field(default_factory=list)  # how earlier prompts began, as far as a plain forward goes
    prefix: int = 0  # memory rows of the last prompt that an earlier one began with
    exact: int = 0  # memory rows behind them that were copied, and computed behind the same text
    moved: int = 0  # all others that were copied
    again: int = 0  # memory rows that could have been copied, and were computed

    @torch.no_grad()
    def prefill(self, parts: Sequence[Part], query: Sequence[int]) -> torch.Tensor:
        """(vocab,) logits of the last row; its rows are there for the prompts to come."""
        self.cache, self.length, self.exact, self.moved = DynamicCache(), 0, 0, 0
        self.prefix = self._longest_prefix(parts)
        self._compute(self.context)
        for part in (old := self._too_old(parts)):
            del self.stored[part]
        self.again = sum(len(part.text) for part in parts if part in old)
        new: dict[Part, tuple[int, int, Text | None]] = {}
        told: Text = ()
        plain, own = True, True  # nothing approximate so far; nothing of another key or of none
        begin = 0
        for part in parts:
            head = min(max(self.prefix - len(told), 0), len(part.text))
            start = self.length
            self._compute(part.text[:head])
            if head < len(part.text) and part in self.stored:
                plain &= self._copy(part, head, told)
            else:
                self._compute(part.text[head:])
            if part not in self.stored:
                new.setdefault(part, (start, self.length, told if plain else None))
            own &= part.key == ""
            told += part.text
            begin = len(told) if plain and own else max(begin, self.prefix)
        self.computed.append(told[:begin])
        logits = self._compute(query)
        for part, (start, stop, behind) in new.items():
            if part.key is not None:
                layers = [(x.keys[:, :, start:stop], x.values[:, :, start:stop]) for x in self.cache.layers]
                self.stored[part] = Rows(start, layers, behind)
        return logits

    def _longest_prefix(self, parts: Sequence[Part]) -> int:
        """Rows, in whole blocks, that an earlier prompt computed exactly."""
        text: list[int] = []
        for part in parts:
            if part.key != "":
                break
            text += part.text
        counts = range(0, len(text) + 1, self.block_size)
        return max(n for n in counts if n == 0 or tuple(text[:n]) in {run[:n] for run in self.computed})

    def _too_old(self, parts: Sequence[Part]) -> set[Part]:
        """Parts behind the prefix whose rows are no forward's, as many of the oldest as have to count as new text."""
        told: Text = ()
        rows, behind = 0, {}
        for part in parts:
            if part in self.stored and len(told) >= self.prefix:
                behind.setdefault(part, told)
            elif part not in self.stored:
                rows += max(0, min(len(part.text), len(told) + len(part.text) - self.prefix))
            told += part.text
        old: set[Part] = set()
        for part, rows_of in self.stored.items():
            if part in behind and rows_of.behind != behind[part] and rows < self.refresh * len(told):
                old.add(part)
                rows += len(part.text)
        return old

    def _compute(self, text: Sequence[int]) -> torch.Tensor:
        """Run ``text`` behind everything; logits of its last row."""
        if not text:
            return torch.empty(0)
        stop = self.length + len(text)
        rows, keys = torch.arange(self.length, stop), torch.arange(stop)
        mask = dense_mask(self.model, keys[None] <= rows[:, None], rows, keys)
        given = {"attention_mask": mask, "position_ids": rows[None], "past_key_values": self.cache, "use_cache": True}
        self.length = stop
        return self.model(torch.tensor([list(text)]), **given).logits[0, -1]

    def _copy(self, part: Part, head: int, told: Text) -> bool:
        """Put the stored rows of ``part`` from row ``head`` on behind everything; would a forward give the same?"""
        rows, count = self.stored[part], len(part.text) - head
        for layer, (k, v) in enumerate(rows.layers):
            moved = turn(self.model, layer, k[:, :, head:], self.length - head - rows.first)
            self.cache.update(moved, v[:, :, head:], layer)
        self.length += count
        exact = rows.behind == told
        self.exact, self.moved = self.exact + exact * count, self.moved + (not exact) * count
        return exact
