"""Benchmark of the engine against transformers' own forward, on random weights.

    python -m benchmarks.engine [--threads N] [--repeats N] [--shapes planner-tiny qwen2.5-0.5b] [--tokens N ...]

The table shows milliseconds per shape, dtype and prompt length. ``plain`` is transformers' forward with SDPA, a KV
cache, and logits of the last row only. ``full`` is the engine's prefill of every row, ``none`` a prefill that reuses
all blocks, and ``keep`` KEEP's prefill with layer-balanced loading. ``score`` scores a trie of 214 candidates;
``encode`` encodes one segment. Contenders take turns, so that other load affects all of them equally. Times are lower
quartiles.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich.table import Table

from benchmarks.timing import take_turns
from keep_agent.console import make_console
from memory.engine.base import Engine
from memory.engine.models.load import load_model
from memory.engine.transformers.engine import TransformersEngine
from memory.kv_cache.block import KVBlock
from memory.loading.layer_balanced import LayerBalanced
from memory.loading.serial import Serial
from memory.prompt.layout import Layout, Placement, SegmentSpan, Unit
from memory.recompute.full import Full
from memory.recompute.multi_hop import MultiHop
from memory.recompute.none import Nothing

SEGMENT, QUERY, VERBS, OBJECTS = 9, 30, 8, 27
TOKENS = {"planner-tiny": (300, 600), "qwen2.5-0.5b": (1024,)}


@dataclass(frozen=True)
class Prompt:
    units: list[list[int]]
    query: list[int]

    @classmethod
    def random(cls, tokens: int, vocab: int) -> Prompt:
        draw = torch.randint(5, vocab, (tokens,), generator=torch.Generator().manual_seed(0)).tolist()
        memory, query = draw[:-QUERY], draw[-QUERY:]
        return cls([memory[i : i + SEGMENT] for i in range(0, len(memory), SEGMENT)], query)

    def layout(self, blocks: Sequence[KVBlock]) -> Layout:
        ids = [token for unit in self.units for token in unit] + self.query
        starts = range(0, len(ids) - QUERY, SEGMENT)
        placements = [
            Placement(Unit("segment", tuple(unit), (SegmentSpan(str(start), 0, len(unit)),)), start, block)
            for unit, start, block in zip(self.units, starts, blocks, strict=True)
        ]
        spans = tuple(SegmentSpan(str(p.start), p.start, p.stop) for p in placements)
        owner = torch.arange(len(ids)) // SEGMENT
        owner[-QUERY:] = -1
        rows = torch.arange(len(ids))
        return Layout(torch.tensor(ids), rows, 0, len(ids) - QUERY, tuple(placements), spans, owner, owner < 0)


def candidates(vocab: int) -> list[list[int]]:
    """Return 214 skills: a verb of two tokens, an object of one or two, and an end token."""
    draw = torch.randint(5, vocab, (4 * OBJECTS + 2 * VERBS,), generator=torch.Generator().manual_seed(1)).tolist()
    verbs = [draw[2 * i : 2 * i + 2] for i in range(VERBS)]
    things = [draw[2 * VERBS + 2 * i :][: 1 + i % 2] for i in range(OBJECTS)]
    return [[*verb, *thing, 4] for verb in verbs for thing in things][:214]


def measure(engine: Engine, tokens: int, repeats: int) -> tuple[dict[str, float], float]:
    """Return the milliseconds of each contender, and the share of rows x layers that ``keep`` computes."""
    prompt, vocab = Prompt.random(tokens, engine.info.vocab), engine.info.vocab
    layout = prompt.layout(engine.encode([(None, unit) for unit in prompt.units]))
    done = engine.prefill(layout, Full(), Serial())
    ids, skills = layout.token_ids[None], candidates(vocab)

    def plain() -> None:
        with torch.inference_mode():
            engine.plain(input_ids=ids, use_cache=True, logits_to_keep=1)

    def keep() -> float:
        return engine.prefill(layout, MultiHop(), LayerBalanced()).trace.computed_ratio

    contenders = {
        "plain": plain,
        "full": lambda: engine.prefill(layout, Full(), Serial()),
        "none": lambda: engine.prefill(layout, Nothing(), Serial()),
        "keep": keep,
        "score": lambda: engine.score(done.cache, skills),
        "encode": lambda: engine.encode([(None, prompt.units[0])]),
    }
    return take_turns(contenders, repeats), keep()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--shapes", nargs="+", default=list(TOKENS))
    parser.add_argument("--tokens", type=int, nargs="+")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--transport", default="auto")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    names = ("plain", "full", "none", "keep", "score", "encode")
    table = Table("shape", "dtype", "tokens", *(f"{name} ms" for name in names), "full/plain", "keep computes")
    for shape in args.shapes:
        for dtype in args.dtypes:
            with TransformersEngine(load_model(shape, dtype=dtype, init="random"), args.transport) as engine:
                for tokens in args.tokens or TOKENS.get(shape, (1024,)):
                    times, share = measure(engine, tokens, args.repeats)
                    ratio = f"{times['full'] / times['plain']:.2f}"
                    cells = (f"{times[name]:.1f}" for name in names)
                    table.add_row(shape, dtype, str(tokens), *cells, ratio, f"{share:.2f}")
    make_console(140).print(table, f"{args.threads} threads, lower quartile of {args.repeats} turns")


if __name__ == "__main__":
    main()
