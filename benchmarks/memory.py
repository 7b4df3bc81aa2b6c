"""What memory itself costs per step.

    python -m benchmarks.memory [segments in the store ...]

Prints medians in milliseconds. ``update`` and ``retrieve`` (choice, plan, look-up, layout) are the session's own
overhead; ``policy`` is what the recompute stage adds inside the prefill; the rest is the engine or the encoder.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch

from memory.construction.per_segment import PerSegment
from memory.construction.prefix import Prefix
from memory.construction.static_dynamic import StaticDynamic
from memory.encoder import make_encoder
from memory.engine.engine import Engine
from memory.engine.load import load_model
from memory.loading.layer_balanced import LayerBalanced
from memory.loading.next_layer import NextLayer
from memory.loading.serial import Serial
from memory.method import MemoryMethod
from memory.recompute.full import Full
from memory.recompute.multi_hop import MultiHop
from memory.recompute.none import Nothing
from memory.report import Prefill, Timings
from memory.retrieval.embedding import Embedding
from memory.session import MemorySession
from memory.stages import Probe

BUDGET = 60
STEPS = 40
PARTS = [field.name for field in fields(Timings)]


class Timed(MultiHop):
    """KEEP's stage with a stopwatch; the first question a layer is asked computes its attention masses."""

    seconds = 0.0

    def narrow(self, layer: int, active: torch.Tensor, probe: Probe) -> torch.Tensor:
        begin = time.perf_counter()
        rows = super().narrow(layer, active, probe)
        Timed.seconds += time.perf_counter() - begin
        return rows


def methods() -> list[MemoryMethod]:
    return [
        MemoryMethod("full_recompute", Embedding(), PerSegment(), Full(), Serial()),
        MemoryMethod("prefix_cache", Embedding(), Prefix(), Nothing(), NextLayer()),
        MemoryMethod("full_reuse", Embedding(), PerSegment(), Nothing(), NextLayer()),
        MemoryMethod("keep", Embedding(), StaticDynamic(), Timed(), LayerBalanced()),
    ]


def encode_text(text: str) -> list[int]:
    """About 12 tokens a line, different for different lines."""
    return [3 + sum(text[i : i + 3].encode()) * (i + 1) % 1000 for i in range(0, len(text), 3)]


def put(session: MemorySession, number: int, rng: random.Random) -> None:
    place = f"cabinet_{rng.randint(1, 12)}"
    session.store.put(f"mug_{number}", "object", f"mug mug_{number} {place} clean and hot\n")


def run(engine: Engine, method: MemoryMethod, size: int) -> list[tuple[Prefill, float]]:
    """Prefills of steps with three changed segments each, and the policy's seconds in them."""
    session = MemorySession(engine, method, make_encoder("hashed"), encode_text, BUDGET)
    rng, query = random.Random(0), encode_text("task put a clean mug in the cabinet\nnext " * 2)
    session.store.put("agent", "agent", "agent at start holding nothing\n")
    for number in range(size - 1):
        put(session, number, rng)
    done = []
    for step in range(STEPS):
        Timed.seconds = 0.0
        done.append((session.prefill("put a clean mug in the cabinet", query), Timed.seconds))
        session.advance()
        for number in rng.sample(range(size - 1), 3):
            put(session, number, rng)
        session.store.put("agent", "agent", f"agent at cabinet_{step} holding nothing\n")
    return done[5:]


def row(cells: Sequence[Any]) -> str:
    return "".join(f"{cell:>10.2f}" if isinstance(cell, float) else f"{cell!s:>10}" for cell in cells)


def main(sizes: Sequence[int]) -> None:
    torch.set_num_threads(1)
    with Engine(load_model("planner-tiny", "bfloat16", init="random")) as engine:
        for size in sizes:
            print(f"\n{size} segments in the store, at most {BUDGET} in the prompt")
            print(f"{'':16}" + row(["rows", *PARTS, "policy", "after", "overhead"]))
            for method in methods():
                done = run(engine, method, size)
                parts = [statistics.median(getattr(p.timings, part) for p, _ in done) for part in PARTS]
                overhead = statistics.median(p.timings.update + p.timings.retrieve for p, _ in done)
                policy = 1e3 * statistics.median(seconds for _, seconds in done)
                after = statistics.median(p.after_ms for p, _ in done)
                print(f"{method.name:16}" + row([done[-1][0].layout.rows, *parts, policy, after, overhead]))


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [60, 1000])
