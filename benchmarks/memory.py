"""Benchmark of the memory session: its cost per step apart from the engine and the encoder.

    python -m benchmarks.memory [segments in the store ...] [--budget 40 160] [--churn 1 4 16] [--methods keep]

Times are medians in milliseconds. ``update`` and ``retrieve`` (selection, plan, look-up, layout) are the session's own
overhead, ``overhead`` is their sum and ``p90`` its 90th percentile; ``policy`` is the recompute stage's part of the
prefill; the other times belong to engine or encoder. ``--churn`` is the number of segments that change per step,
including the agent's. With ``--steady`` they come from the same few, so that the groups of the others become static.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Any

import torch

from benchmarks.house import QUERY, House, encode_text
from benchmarks.timing import TimedStage
from memory.construction.per_segment import PerSegment
from memory.construction.prefix import Prefix
from memory.construction.static_dynamic import StaticDynamic
from memory.engine.base import Engine
from memory.engine.models.load import load_model
from memory.engine.transformers.engine import TransformersEngine
from memory.loading.layer_balanced import LayerBalanced
from memory.loading.next_layer import NextLayer
from memory.loading.serial import Serial
from memory.method import MemoryMethod
from memory.prompt.report import Prefill, Timings
from memory.recompute.full import Full
from memory.recompute.multi_hop import MultiHop
from memory.recompute.none import Nothing
from memory.retrieval.embedding import Embedding
from memory.segments.sentence_encoder import make_encoder
from memory.session import MemorySession

WARM_UP = 15  # untimed steps, after which unchanged groups are static
PARTS = [field.name for field in fields(Timings)]


def methods() -> list[MemoryMethod]:
    return [
        MemoryMethod("full_recompute", Embedding(), PerSegment(), Full(), Serial()),
        MemoryMethod("prefix_cache", Embedding(), Prefix(), Nothing(), NextLayer()),
        MemoryMethod("full_reuse", Embedding(), PerSegment(), Nothing(), NextLayer()),
        MemoryMethod("keep", Embedding(), StaticDynamic(), TimedStage(MultiHop()), LayerBalanced()),
    ]


@dataclass(frozen=True)
class MemorySetting:
    size: int
    budget: int
    churn: int
    steady: bool
    steps: int


def run(engine: Engine, method: MemoryMethod, setting: MemorySetting) -> Iterator[tuple[Prefill, float]]:
    """Yield the prefill of each step, and the milliseconds of its recompute stage; the house changes after each."""
    session = MemorySession(engine, method, make_encoder("hashed"), encode_text, setting.budget)
    house = House(setting.size, setting.steady, session.store)
    query = encode_text(f"task {QUERY}\nnext " * 2)
    times = method.recompute.times if isinstance(method.recompute, TimedStage) else []
    for step in range(WARM_UP + setting.steps):
        times.clear()
        prefill = session.prefill(QUERY, query)
        if step >= WARM_UP:
            yield prefill, sum(times)
        house.change(setting.churn)


def summary(done: Sequence[tuple[Prefill, float]]) -> list[Any]:
    """Return the cells in the order of the table."""
    overhead = [p.timings.update + p.timings.retrieve for p, _ in done]
    return [
        done[-1][0].layout.rows,
        statistics.fmean(len(p.flips) for p, _ in done),
        *(statistics.median(getattr(p.timings, part) for p, _ in done) for part in PARTS),
        statistics.median(policy for _, policy in done),
        statistics.median(p.after_ms for p, _ in done),
        statistics.median(overhead),
        statistics.quantiles(overhead, n=10)[-1],
    ]


def row(cells: Sequence[Any]) -> str:
    return "".join(f"{cell:>10.2f}" if isinstance(cell, float) else f"{cell!s:>10}" for cell in cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", type=int, nargs="*", default=[60, 1000])
    parser.add_argument("--budget", type=int, nargs="+", default=[60])
    parser.add_argument("--churn", type=int, nargs="+", default=[4])
    parser.add_argument("--methods", nargs="+", choices=[method.name for method in methods()])
    parser.add_argument("--steady", action="store_true")
    parser.add_argument("--steps", type=int, default=35)
    args = parser.parse_args()
    torch.set_num_threads(1)
    selection = [method for method in methods() if not args.methods or method.name in args.methods]
    with TransformersEngine(load_model("planner-tiny", "bfloat16", init="random")) as engine:
        for size, budget, churn in product(args.sizes, args.budget, args.churn):
            print(f"\n{size} segments in the store, at most {budget} in the prompt, {churn} changes a step")
            print(f"{'':16}" + row(["rows", "flips", *PARTS, "policy", "after", "overhead", "p90"]))
            for method in selection:
                done = list(run(engine, method, MemorySetting(size, budget, churn, args.steady, args.steps)))
                print(f"{method.name:16}" + row(summary(done)), flush=True)


if __name__ == "__main__":
    main()
