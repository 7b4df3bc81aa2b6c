"""What a packed cache stands for: transformers' own forward, its keys and values packed and unpacked page by page."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from memory.kv_cache.quantization import PackFormat, pack
from tests.references.isolated import dense_mask

PAGE = 64


class Stored(DynamicCache):
    """Whole pages are replaced by what comes back of them; a pass sees the pages it fills as packed.

    But for a pass that ends with the only page it fills: that one is packed behind the pass.
    """

    def __init__(self, format: PackFormat) -> None:
        super().__init__()
        self.format, self.packed, self.lasting = format, 0, True

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any) -> tuple[torch.Tensor, ...]:
        keys, values = super().update(keys, values, layer)
        if self.lasting and keys.shape[2] - self.packed > PAGE:
            self.replace(layer)
        return self.layers[layer].keys, self.layers[layer].values

    def replace(self, layer: int) -> None:
        """The whole pages of a layer that are not packed yet."""
        own = self.layers[layer]
        stop = own.keys.shape[2] // PAGE * PAGE
        own.keys = self._replaced(own.keys, stop, self.format.keys)
        own.values = self._replaced(own.values, stop, "token")

    def _replaced(self, x: torch.Tensor, stop: int, along: Any) -> torch.Tensor:
        pages = [pack(page, self.format, along).unpack(x.dtype) for page in x[:, :, self.packed : stop].split(PAGE, 2)]
        return torch.cat([x[:, :, : self.packed], *pages, x[:, :, stop:]], 2)

    def crop(self, length: int) -> None:
        for layer in self.layers:
            layer.keys, layer.values = layer.keys[:, :, :length], layer.values[:, :, :length]
        self.packed = min(self.packed, length // PAGE * PAGE)


class Dense:
    """One agent's rows in full. Rows that were dropped are hidden by the mask."""

    def __init__(self, model: PreTrainedModel, format: PackFormat) -> None:
        self.model, self.stored = model, Stored(format)
        self.live = torch.empty(0, dtype=torch.bool)
        self.logits = torch.empty(0)

    @property
    def rows(self) -> int:
        return self.live.numel()

    def append(self, ids: Sequence[int], lasting: bool = True) -> torch.Tensor:
        """(rows, vocab) logits of all new rows."""
        start, self.stored.lasting = self.rows, lasting
        self.live = torch.cat([self.live, torch.ones(len(ids), dtype=torch.bool)])
        every = torch.arange(self.rows)
        visible = (every[None] <= every[start:, None]) & self.live[None]
        given = {"position_ids": every[None, start:], "past_key_values": self.stored, "use_cache": True}
        with torch.inference_mode():
            mask = dense_mask(self.model, visible, every[start:], every)
            found = self.model(torch.tensor([list(ids)]), attention_mask=mask, **given).logits[0]
            whole = self.rows // PAGE * PAGE
            if lasting and whole > self.stored.packed:
                for layer in range(len(self.stored.layers)):
                    if self.rows - self.stored.packed == PAGE:
                        self.stored.replace(layer)
                self.stored.packed = whole
        self.logits = found[-1:]
        return found

    def score(self, candidates: Sequence[Sequence[int]]) -> torch.Tensor:
        """Summed log-likelihoods, each candidate on a copy."""
        sums = []
        for candidate in candidates:
            logits = torch.cat([self.logits, self.copy().append(candidate, lasting=False)[:-1]]).log_softmax(-1)
            sums.append(logits.gather(1, torch.tensor(candidate)[:, None]).sum())
        return torch.stack(sums)

    def cut(self, position: int) -> None:
        self.stored.crop(position)
        self.live = self.live[:position]

    def drop(self, positions: torch.Tensor) -> None:
        self.live[positions] = False

    def copy(self) -> Dense:
        other = copy.copy(self)
        other.stored, other.live = copy.deepcopy(self.stored), self.live.clone()
        return other
