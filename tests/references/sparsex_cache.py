"""SparseX's segment cache (arXiv 2606.01751, sections 3.1 and 4.5) with transformers' own forward only.

A prompt is processed from left to right over one dense cache: new text is computed after all previous rows; a segment
that an earlier prompt computed is copied from that prompt's cache, with its keys rotated by the difference of the
positions. With ``refresh`` the oldest of these segments are computed and stored again, until that share of a prompt's
memory is new.
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
    first: int  # position of the first row
    layers: list[tuple[torch.Tensor, torch.Tensor]]  # rotated keys, and values
    preceding: Text | None  # all memory before them; None if it contained copied rows


@dataclass(frozen=True)
class Part:
    """Segment of a prompt; ``key=None``: never stored, never looked up."""

    text: Text
    key: str | None = ""
    preceding: Text = ()  # text before it that is part of its identity


@dataclass
class SegmentCache:
    """Cache of all earlier prompts, with counts of the rows that the last prompt reused."""

    model: PreTrainedModel
    context: Text
    block_size: int
    refresh: float = 0.0
    stored: dict[Part, Rows] = field(default_factory=dict)  # in order of computation
    computed: list[Text] = field(default_factory=list)  # exactly computed beginnings of earlier prompts
    prefix: int = 0  # memory rows of the last prompt that are a prefix of an earlier one
    exact: int = 0  # copied memory rows after the prefix that were computed after the same text
    approximate: int = 0  # all other copied memory rows
    again: int = 0  # memory rows that could have been copied and were computed again

    @torch.no_grad()
    def prefill(self, parts: Sequence[Part], query: Sequence[int]) -> torch.Tensor:
        """Compute a prompt and store its rows; return the logits (vocab,) of the last row."""
        self.cache, self.length, self.exact, self.approximate = DynamicCache(), 0, 0, 0
        self.prefix = self._longest_prefix(parts)
        self._compute(self.context)
        for part in (old := self._too_old(parts)):
            del self.stored[part]
        self.again = sum(len(part.text) for part in parts if part in old)
        new: dict[Part, tuple[int, int, Text | None]] = {}
        text_before: Text = ()
        plain, default_key = True, True  # so far, all rows are exact; all parts have the key ""
        begin = 0
        for part in parts:
            head = min(max(self.prefix - len(text_before), 0), len(part.text))
            start = self.length
            self._compute(part.text[:head])
            if head < len(part.text) and part in self.stored:
                plain &= self._copy(part, head, text_before)
            else:
                self._compute(part.text[head:])
            if part not in self.stored:
                new.setdefault(part, (start, self.length, text_before if plain else None))
            default_key &= part.key == ""
            text_before += part.text
            begin = len(text_before) if plain and default_key else max(begin, self.prefix)
        self.computed.append(text_before[:begin])
        logits = self._compute(query)
        for part, (start, stop, preceding) in new.items():
            if part.key is not None:
                layers = [(x.keys[:, :, start:stop], x.values[:, :, start:stop]) for x in self.cache.layers]
                self.stored[part] = Rows(start, layers, preceding)
        return logits

    def _longest_prefix(self, parts: Sequence[Part]) -> int:
        """Count the rows, in complete blocks, that an earlier prompt computed exactly."""
        text: list[int] = []
        for part in parts:
            if part.key != "":
                break
            text += part.text
        counts = range(0, len(text) + 1, self.block_size)
        return max(n for n in counts if n == 0 or tuple(text[:n]) in {run[:n] for run in self.computed})

    def _too_old(self, parts: Sequence[Part]) -> set[Part]:
        """Return the oldest parts after the prefix with approximate rows, up to the share that must be recomputed."""
        text_before: Text = ()
        rows, preceding = 0, {}
        for part in parts:
            if part in self.stored and len(text_before) >= self.prefix:
                preceding.setdefault(part, text_before)
            elif part not in self.stored:
                rows += max(0, min(len(part.text), len(text_before) + len(part.text) - self.prefix))
            text_before += part.text
        old: set[Part] = set()
        for part, rows_of in self.stored.items():
            if part in preceding and rows_of.preceding != preceding[part] and rows < self.refresh * len(text_before):
                old.add(part)
                rows += len(part.text)
        return old

    def _compute(self, text: Sequence[int]) -> torch.Tensor:
        """Compute ``text`` after all rows; return the logits of its last row."""
        if not text:
            return torch.empty(0)
        stop = self.length + len(text)
        rows, keys = torch.arange(self.length, stop), torch.arange(stop)
        mask = dense_mask(self.model, keys[None] <= rows[:, None], rows, keys)
        options = {"attention_mask": mask, "position_ids": rows[None], "past_key_values": self.cache, "use_cache": True}
        self.length = stop
        return self.model(torch.tensor([list(text)]), **options).logits[0, -1]

    def _copy(self, part: Part, head: int, text_before: Text) -> bool:
        """Append the stored rows of ``part`` from row ``head`` on; return whether they are exact."""
        rows, count = self.stored[part], len(part.text) - head
        for layer, (k, v) in enumerate(rows.layers):
            keys = turn(self.model, layer, k[:, :, head:], self.length - head - rows.first)
            self.cache.update(keys, v[:, :, head:], layer)
        self.length += count
        exact = rows.preceding == text_before
        self.exact, self.approximate = self.exact + exact * count, self.approximate + (not exact) * count
        return exact
