"""Reference of a packed cache: transformers' own forward, with keys and values packed and unpacked page by page."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from memory.kv_cache.quantization import PackFormat, pack
from tests.references.isolated import dense_mask

PAGE = 64


class PackedPages(DynamicCache):
    """Cache whose complete pages are packed and unpacked again; a pass sees the pages that it completes as packed.

    Exception: if a pass ends with the only page it completes, that page is packed after the pass.
    """

    def __init__(self, format: PackFormat) -> None:
        super().__init__()
        self.format, self.packed, self.keep = format, 0, True

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any) -> tuple[torch.Tensor, ...]:
        keys, values = super().update(keys, values, layer)
        if self.keep and keys.shape[2] - self.packed > PAGE:
            self.replace(layer)
        return self.layers[layer].keys, self.layers[layer].values

    def replace(self, layer: int) -> None:
        """Pack and unpack the complete pages of a layer that are not packed yet."""
        stored = self.layers[layer]
        stop = stored.keys.shape[2] // PAGE * PAGE
        stored.keys = self._replaced(stored.keys, stop, self.format.keys)
        stored.values = self._replaced(stored.values, stop, "token")

    def _replaced(self, x: torch.Tensor, stop: int, along: Any) -> torch.Tensor:
        pages = [pack(page, self.format, along).unpack(x.dtype) for page in x[:, :, self.packed : stop].split(PAGE, 2)]
        return torch.cat([x[:, :, : self.packed], *pages, x[:, :, stop:]], 2)

    def crop(self, length: int) -> None:
        for layer in self.layers:
            layer.keys, layer.values = layer.keys[:, :, :length], layer.values[:, :, :length]
        self.packed = min(self.packed, length // PAGE * PAGE)


class Dense:
    """Rows of one agent, all kept; the mask hides dropped rows."""

    def __init__(self, model: PreTrainedModel, format: PackFormat) -> None:
        self.model, self.stored = model, PackedPages(format)
        self.live = torch.empty(0, dtype=torch.bool)
        self.logits = torch.empty(0)

    @property
    def rows(self) -> int:
        return self.live.numel()

    def append(self, ids: Sequence[int], keep: bool = True) -> torch.Tensor:
        """Append tokens; return the logits (rows, vocab) of the new rows."""
        start, self.stored.keep = self.rows, keep
        self.live = torch.cat([self.live, torch.ones(len(ids), dtype=torch.bool)])
        every = torch.arange(self.rows)
        visible = (every[None] <= every[start:, None]) & self.live[None]
        options = {"position_ids": every[None, start:], "past_key_values": self.stored, "use_cache": True}
        with torch.inference_mode():
            mask = dense_mask(self.model, visible, every[start:], every)
            logits = self.model(torch.tensor([list(ids)]), attention_mask=mask, **options).logits[0]
            whole = self.rows // PAGE * PAGE
            if keep and whole > self.stored.packed:
                for layer in range(len(self.stored.layers)):
                    if self.rows - self.stored.packed == PAGE:
                        self.stored.replace(layer)
                self.stored.packed = whole
        self.logits = logits[-1:]
        return logits

    def score(self, candidates: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return the summed log-likelihoods of the candidates, each on a copy."""
        sums = []
        for candidate in candidates:
            logits = torch.cat([self.logits, self.copy().append(candidate, keep=False)[:-1]]).log_softmax(-1)
            sums.append(logits.gather(1, torch.tensor(candidate)[:, None]).sum())
        return torch.stack(sums)

    def cut(self, position: int) -> None:
        self.stored.crop(position)
        self.live = self.live[:position]

    def drop(self, positions: torch.Tensor) -> None:
        self.live[positions] = False

    def copy(self) -> Dense:
        duplicate = copy.copy(self)
        duplicate.stored, duplicate.live = copy.deepcopy(self.stored), self.live.clone()
        return duplicate
