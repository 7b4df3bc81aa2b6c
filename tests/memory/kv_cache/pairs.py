"""Packed cache beside its dense reference. Error: largest difference over the largest expected magnitude."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from memory.engine.base import ChunkSchedule, Engine
from memory.files.block_file import open_blocks, write_blocks
from memory.kv_cache.quantization import PackFormat
from memory.kv_cache.quantized import PAGE, Extent, QuantizedCache
from memory.kv_cache.quantized_file import header_of, restore, tensors_of
from tests.laws.prompts import relative, tokens
from tests.references.packed import Dense

FORMATS = (PackFormat(4), PackFormat(8), PackFormat(4, keys="channel"), PackFormat(8, 32, "channel"))
CANDIDATES = [[5, 6, 7], [5, 6], [9], [5, 8, 1, 2], [300, 301]]
EVERY_FORMAT = pytest.mark.parametrize("format", FORMATS, ids=lambda f: f"{f.bits}-{f.group}-{f.keys}")
SMALL = pytest.mark.parametrize("family", ["qwen2", "gemma3_text", "gpt_oss"])
EXACT = 1e-9  # float64, where the rounding of a sum changes no code
GetEngine = Callable[..., Engine]


def packed(engine: Engine, format: PackFormat = FORMATS[0]) -> QuantizedCache:
    return QuantizedCache(engine.info, format, engine.device)


def filled(engine: Engine, rows: int, seed: int = 1, chunking: ChunkSchedule | None = None) -> QuantizedCache:
    cache = packed(engine)
    engine.extend(cache, tokens(rows, seed), chunking)
    return cache


@dataclass
class Pair:
    """Packed cache with its dense reference; every step compares their logits."""

    engine: Engine
    cache: QuantizedCache
    dense: Dense
    step: int = 0

    @classmethod
    def new(cls, engine: Engine, format: PackFormat = FORMATS[0], rows: int = 0) -> Pair:
        pair = cls(engine, packed(engine, format), Dense(engine.plain, format))
        if rows:
            pair.append(rows)
        return pair

    def append(self, count: int, chunking: ChunkSchedule | None = None) -> None:
        self.step += 1
        ids, at = tokens(count, 1000 * self.step + count), 0
        actual = self.engine.extend(self.cache, ids, chunking).logits
        whole = chunking is None or count < chunking.one_pass
        while at < count:
            size = count if whole else chunking.size(int(self.dense.live.sum()), count - at)
            self.dense.append(ids[at : at + size])
            at += size
        assert relative(actual, self.dense.logits) < EXACT
        self.check_counters()

    def cut(self, position: int) -> None:
        self.cache.cut(position)
        self.dense.cut(position)
        self.check_counters()

    def drop(self, share: float) -> None:
        keep = torch.rand(self.cache.length, generator=torch.Generator().manual_seed(self.step)) > share
        keep[-1:] = True  # a turn over no rows would have no logits
        self.dense.drop(self.cache.positions[~keep])
        exact = min([self.cache.exact, *self.cache.positions[~keep].tolist()])
        self.cache.drop(keep)
        assert self.cache.exact == exact
        self.check_counters()

    def fork(self) -> Pair:
        return Pair(self.engine, self.cache.fork(), self.dense.copy(), self.step + 1)

    def score(self) -> None:
        if self.cache.logits is not None:
            actual = self.engine.score(self.cache, CANDIDATES).scores
            assert relative(actual, self.dense.score(CANDIDATES)) < EXACT

    def check_counters(self) -> None:
        cache = self.cache
        assert cache.positions.tolist() == self.dense.live.nonzero()[:, 0].tolist()
        assert (cache.next_position, cache.length) == (self.dense.rows, int(self.dense.live.sum()))
        assert cache.packed % PAGE == 0 and 0 <= cache.next_position - cache.packed < PAGE
        assert len(cache.tokens) == cache.next_position

    def check_rows(self) -> None:
        for layer, stored in enumerate(self.dense.stored.layers):
            for actual, expected in ((self.cache.keys(layer), stored.keys), (self.cache.values(layer), stored.values)):
                assert relative(actual, expected[0][:, self.dense.live]) < EXACT


def bits_of(cache: QuantizedCache) -> list[torch.Tensor]:
    layers = range(cache.spec.layers)
    return [*(cache.keys(layer) for layer in layers), *(cache.values(layer) for layer in layers)]


def tensors_in(extents: Iterable[Extent]) -> list[torch.Tensor]:
    return [x for extent in extents for side in (extent.k, extent.v) for x in side.tensors]


def same(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


def save(cache: QuantizedCache, path: Path) -> Path:
    tensors, extra = tensors_of(cache)
    write_blocks(path, tensors, header_of(cache), extra)
    return path


def load(engine: Engine, path: Path) -> QuantizedCache:
    return restore(open_blocks(path), engine.info, engine.device)


def fail(engine: Engine, cache: QuantizedCache, count: int) -> None:
    """Run a pass that fails before its second layer is written."""

    def stop(*_: object) -> None:
        raise InterruptedError

    with engine.decoder.layers[1].input_layernorm.register_forward_pre_hook(stop), pytest.raises(InterruptedError):
        engine.extend(cache, tokens(count, 99))
