"""A packed cache beside the dense one that it stands for.

Norm: largest difference over the largest expected magnitude.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from memory.engine.base import ChunkSchedule, Engine
from memory.files.block_file import open_blocks, write_blocks
from memory.kv_cache.quantization import PackFormat
from memory.kv_cache.quantized import PAGE, QuantizedCache
from memory.kv_cache.quantized_file import header_of, restore, tensors_of
from tests.laws.prompts import relative, tokens
from tests.references.packed import Dense

FORMATS = (PackFormat(4), PackFormat(8), PackFormat(4, keys="channel"), PackFormat(8, 32, "channel"))
CANDIDATES = [[5, 6, 7], [5, 6], [9], [5, 8, 1, 2], [300, 301]]
EVERY_FORMAT = pytest.mark.parametrize("format", FORMATS, ids=lambda f: f"{f.bits}-{f.group}-{f.keys}")
SMALL = pytest.mark.parametrize("family", ["qwen2", "gemma3_text", "gpt_oss"])
EXACT = 1e-9  # in float64, where no rounding of a sum lifts a number over the edge between two codes
GetEngine = Callable[..., Engine]


def packed(engine: Engine, format: PackFormat = FORMATS[0]) -> QuantizedCache:
    return QuantizedCache(engine.info, format, engine.device)


@dataclass
class Pair:
    """A packed cache and what it stands for. Every step compares logits."""

    engine: Engine
    cache: QuantizedCache
    dense: Dense
    step: int = 0

    @classmethod
    def new(cls, engine: Engine, format: PackFormat = FORMATS[0]) -> Pair:
        return cls(engine, packed(engine, format), Dense(engine.plain, format))

    def append(self, count: int, chunking: ChunkSchedule | None = None) -> None:
        self.step += 1
        ids, at = tokens(count, 1000 * self.step + count), 0
        found = self.engine.extend(self.cache, ids, chunking).logits
        whole = chunking is None or count < chunking.whole
        while at < count:
            size = count if whole else chunking.size(int(self.dense.live.sum()), count - at)
            self.dense.append(ids[at : at + size])
            at += size
        assert relative(found, self.dense.logits) < EXACT
        self.check_counters()

    def cut(self, position: int) -> None:
        self.cache.cut(position)
        self.dense.cut(position)
        self.check_counters()

    def drop(self, share: float) -> None:
        keep = torch.rand(self.cache.length, generator=torch.Generator().manual_seed(self.step)) > share
        keep[-1:] = True  # a turn that saw nothing at all would have no logits
        self.dense.drop(self.cache.positions[~keep])
        self.cache.drop(keep)
        self.check_counters()

    def fork(self) -> Pair:
        return Pair(self.engine, self.cache.fork(), self.dense.copy(), self.step + 1)

    def score(self) -> None:
        if self.cache.logits is not None:
            found = self.engine.score(self.cache, CANDIDATES).scores
            assert relative(found, self.dense.score(CANDIDATES)) < EXACT

    def check_counters(self) -> None:
        cache = self.cache
        assert cache.positions.tolist() == self.dense.live.nonzero()[:, 0].tolist()
        assert (cache.next_position, cache.length) == (self.dense.rows, int(self.dense.live.sum()))
        assert cache.packed % PAGE == 0 and 0 <= cache.next_position - cache.packed < PAGE
        assert len(cache.tokens) == cache.next_position

    def check_rows(self) -> None:
        """The rows themselves, as they come back."""
        for layer, stored in enumerate(self.dense.stored.layers):
            for found, expected in ((self.cache.keys(layer), stored.keys), (self.cache.values(layer), stored.values)):
                assert relative(found, expected[0][:, self.dense.live]) < EXACT


def bits_of(cache: QuantizedCache) -> list[torch.Tensor]:
    """All that a pass over the cache reads."""
    layers = range(cache.spec.layers)
    return [*(cache.keys(layer) for layer in layers), *(cache.values(layer) for layer in layers)]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def save(cache: QuantizedCache, path: Path) -> Path:
    tensors, extra = tensors_of(cache)
    write_blocks(path, tensors, header_of(cache), extra)
    return path


def load(engine: Engine, path: Path) -> QuantizedCache:
    return restore(open_blocks(path), engine.info, engine.device)


class Stop(Exception):
    """A pass that somebody broke off."""


def fail(engine: Engine, cache: QuantizedCache, count: int) -> None:
    """A pass that ends in the middle: the first layer is written, the second is not."""

    def stop(*_: object) -> None:
        raise Stop

    handle = engine.decoder.layers[1].input_layernorm.register_forward_pre_hook(stop)
    try:
        with pytest.raises(Stop):
            engine.extend(cache, tokens(count, 99))
    finally:
        handle.remove()
