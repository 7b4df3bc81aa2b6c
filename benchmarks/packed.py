"""Benchmark of quantized keys and values: size and attention time, compared with bfloat16.

    python -m benchmarks.packed [--threads N] [--repeats N] [--shapes planner-tiny qwen2.5-0.5b] [--tokens N] [--rows N]

Keys and values of all layers are random. ``bytes`` is the size relative to bfloat16. ``pack`` is the time to pack all
layers of all tokens, in microseconds per token. The other times are milliseconds over all layers: ``dense`` and
``tiled`` are the attention of the last ``rows`` tokens over bfloat16 and over packed tiles; ``unpack`` only unpacks the
tiles. Contenders take turns, so that other load affects all of them equally; the table shows the lower quartile.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from rich.table import Table
from torch.nn import functional

from benchmarks.timing import take_turns
from keep_agent.console import make_console
from memory.engine.attention.kernels import KEY_MULTIPLE, causal_plan, grouped_attention
from memory.engine.attention.tiled import Tile, tiled_attention, unpacked_tiles
from memory.kv_cache.quantization import Packed, PackFormat, pack

DTYPE = torch.bfloat16
ROWS = (1, 32)
FORMATS = (PackFormat(4), PackFormat(4, keys="channel"), PackFormat(8))


@dataclass(frozen=True)
class Shape:
    layers: int
    heads: int
    kv_heads: int
    head_dim: int


SHAPES = {"planner-tiny": Shape(12, 6, 6, 32), "qwen2.5-0.5b": Shape(24, 14, 2, 64)}


@dataclass(frozen=True)
class PackedMemory:
    """Keys and values of all layers (layers, 1, kv_heads, tokens, head_dim), in bfloat16 and packed."""

    shape: Shape
    k: torch.Tensor
    v: torch.Tensor
    packed: tuple[Packed, Packed]

    @classmethod
    def random(cls, shape: Shape, tokens: int, format: PackFormat) -> PackedMemory:
        size = (2, shape.layers, 1, shape.kv_heads, tokens, shape.head_dim)
        k, v = torch.randn(size, generator=torch.Generator().manual_seed(0)).to(DTYPE)
        return cls(shape, k, v, (pack(k, format, format.keys), pack(v, format)))

    @property
    def share(self) -> float:
        return sum(x.nbytes for x in self.packed) / (self.k.nbytes + self.v.nbytes)

    def tiles(self, layer: int) -> Iterator[Tile]:
        return unpacked_tiles(*(x[layer] for x in self.packed), DTYPE)


def pack_time(memory: PackedMemory, format: PackFormat, repeats: int) -> float:
    """Return the milliseconds for packing all layers one by one, as in a prefill; one layer is timed."""

    def work() -> None:
        pack(memory.k[0], format, format.keys)
        pack(memory.v[0], format)

    return memory.shape.layers * take_turns({"pack": work}, repeats)["pack"]


def contenders(memory: PackedMemory, rows: int) -> dict[str, Callable[[], None]]:
    """Return the contenders: attention of the last ``rows`` rows (dense, tiled) or only unpacking, at every layer."""
    shape, tokens = memory.shape, memory.packed[0].tokens
    q = torch.randn(1, shape.heads, rows, shape.head_dim, generator=torch.Generator().manual_seed(1)).to(DTYPE)
    every, scale = torch.arange(tokens), shape.head_dim**-0.5
    blocks = causal_plan(every[-rows:], every, DTYPE).blocks(None)
    padded = (functional.pad(x, (0, 0, 0, KEY_MULTIPLE)) for x in (memory.k, memory.v))
    layers = list(zip(*padded, strict=True))

    def dense() -> None:
        for k, v in layers:
            grouped_attention(q, k, v, blocks, scale)

    def tiled() -> None:
        for layer in range(shape.layers):
            tiled_attention(q, memory.tiles(layer), blocks, scale)

    def unpack() -> None:
        for layer in range(shape.layers):
            for _ in memory.tiles(layer):
                pass

    return {"dense": dense, "tiled": tiled, "unpack": unpack}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    table = Table("shape", "bits", "keys by", "bytes", "pack µs", "rows", "dense ms", "tiled ms", "unpack ms")
    for name in args.shapes:
        for format in FORMATS:
            with torch.inference_mode():
                memory = PackedMemory.random(SHAPES[name], args.tokens, format)
                packing = 1e3 * pack_time(memory, format, args.repeats) / args.tokens
                cost = f"{100 * memory.share:.1f} %", f"{packing:.1f}"
                for rows in args.rows:
                    times = take_turns(contenders(memory, rows), args.repeats)
                    cells = (f"{times[part]:.1f}" for part in ("dense", "tiled", "unpack"))
                    table.add_row(name, str(format.bits), format.keys, *cost, str(rows), *cells)
    note = f"{args.tokens} tokens, {args.threads} threads, lower quartile of {args.repeats} turns"
    make_console(140).print(table, note)


if __name__ == "__main__":
    main()
