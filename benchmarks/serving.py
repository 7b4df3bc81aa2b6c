"""Several agents on one model: decoding together against one by one, and a short request behind a long one.

    python -m benchmarks.serving [--threads N] [--repeats N] [--shapes planner-tiny qwen2.5-0.5b] [--agents N]

Random weights in bfloat16. First table: tokens per second of all agents, ``together`` in a batch and ``alone`` one step
after the other, over caches as they were computed (paged) and packed in 4 bits; contenders take turns, so that a busy
machine is busy for all of them, and the ratio is the median of the turns'. Second table: agent A brings a long prompt;
when its first chunk is done, agent B asks something short. Milliseconds from B's request to its first token, and from
A's request to A's: ``interleaved`` by the scheduler, against ``in order of arrival``, in which B waits until A has its
answer.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.table import Table

from keep_agent.console import make_console
from memory.engine.base import Engine
from memory.engine.chunking import ChunkSchedule
from memory.engine.models.load import load_model
from memory.engine.scheduler.batch import Member, merge
from memory.engine.scheduler.request_stream import Stream
from memory.engine.scheduler.scheduler import Scheduler, SchedulerConfig
from memory.engine.transformers.append import append
from memory.engine.transformers.engine import TransformersEngine
from memory.kv_cache.kv_pool import KVPool
from memory.kv_cache.paged import PagedCache
from memory.kv_cache.quantization import PackFormat
from memory.kv_cache.quantized import QuantizedCache

SHAPES = ("planner-tiny", "qwen2.5-0.5b")
FORMATS = {"bfloat16": None, "4 bits": PackFormat(4)}
LONG = {"planner-tiny": 3072, "qwen2.5-0.5b": 2048}  # tokens of A's prompt
SHORT, ANSWER = 32, 16


def some_ids(count: int, seed: int = 0) -> list[int]:
    return torch.randint(5, 4000, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def empty(engine: Engine, format: PackFormat | None) -> Member:
    spec, device = engine.info, engine.device
    if format is not None:
        return QuantizedCache(spec, format, device)
    return PagedCache(KVPool(spec.layers, spec.kv_heads, spec.head_dim, spec.dtype, device))


def agents(engine: Engine, format: PackFormat | None, count: int, tokens: int) -> list[Member]:
    """Caches of about ``tokens`` rows each, no two of them alike, in one pool if they are paged."""
    first = empty(engine, format)
    caches = [first, *(empty(engine, format) if format else PagedCache(first.pool) for _ in range(count - 1))]
    for number, cache in enumerate(caches):
        engine.extend(cache, some_ids(tokens - 3 * number, number))
    return caches


@dataclass(frozen=True)
class Rates:
    together: float  # tokens of all agents per second
    alone: float
    ratio: float


@torch.inference_mode()
def rates(engine: Engine, format: PackFormat | None, count: int, tokens: int, repeats: int) -> Rates:
    """Medians of ``repeats`` turns, the first two left out."""
    caches, batched = (agents(engine, format, count, tokens) for _ in range(2))
    batch = merge(engine.decoder, batched)

    def alone() -> None:
        for cache in caches:
            append(engine.decoder, cache, torch.tensor([7], device=engine.device))

    turns = [(timed(lambda: batch.step([7] * count)), timed(alone)) for _ in range(repeats + 2)][2:]
    together, single = (statistics.median(times) for times in zip(*turns, strict=True))
    return Rates(count / together, count / single, statistics.median(b / a for a, b in turns))


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@dataclass(frozen=True)
class Waits:
    """Seconds to the first tokens."""

    late: float
    long: float


def staggered(engine: Engine, format: PackFormat | None, rows: int, few: int, interleaved: bool) -> Waits:
    """A long request, and a short one behind its first chunk."""
    pacing = SchedulerConfig(ChunkSchedule(steps=(), rest=few), few=few)
    scheduler = Scheduler(engine, pacing, automatic=False)
    started, a, b = time.perf_counter(), empty(engine, format), empty(engine, format)
    long = scheduler.submit("A", a, some_ids(rows), ANSWER)
    scheduler.turn()
    scheduler.turn()
    asked = time.perf_counter()
    if interleaved:
        late = scheduler.submit("B", b, some_ids(SHORT, 1), ANSWER)
        return Waits(until_first(scheduler, late) - asked, until_first(scheduler, long) - started)
    first = until_first(scheduler, long)
    scheduler.run_until_idle()
    late = scheduler.submit("B", b, some_ids(SHORT, 1), ANSWER)
    return Waits(until_first(scheduler, late) - asked, first - started)


def until_first(scheduler: Scheduler, stream: Stream) -> float:
    """The time when the stream's first token is out."""
    while stream.first is None:
        scheduler.turn()
    return time.perf_counter()


def decoding(args: argparse.Namespace) -> Table:
    table = Table("shape", "cache", "context", "together tokens/s", "alone tokens/s", "ratio")
    for shape in args.shapes:
        with TransformersEngine(load_model(shape, dtype="bfloat16", init="random")) as engine:
            for name, format in FORMATS.items():
                for tokens in args.tokens:
                    found = rates(engine, format, args.agents, tokens, args.repeats)
                    numbers = f"{found.together:.1f}", f"{found.alone:.1f}", f"{found.ratio:.1f}"
                    table.add_row(shape, name, str(tokens), *numbers)
    return table


def waiting(args: argparse.Namespace) -> Table:
    table = Table("shape", "cache", "A's tokens", "order", "B's first token ms", "A's first token ms")
    for shape in args.shapes:
        with TransformersEngine(load_model(shape, dtype="bfloat16", init="random")) as engine:
            for name, format in FORMATS.items():
                found: dict[bool, list[Waits]] = {True: [], False: []}
                for _ in range(args.staggers):
                    for interleaved, waits in found.items():
                        waits.append(staggered(engine, format, LONG[shape], args.few, interleaved))
                for interleaved, waits in found.items():
                    times = (1e3 * statistics.median(getattr(one, who) for one in waits) for who in ("late", "long"))
                    order = "interleaved" if interleaved else "in order of arrival"
                    table.add_row(shape, name, str(LONG[shape]), order, *(f"{ms:.0f}" for ms in times))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--staggers", type=int, default=3)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 2048])
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--few", type=int, default=256, help="rows of a chunk")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    console, threads = make_console(140), f"{args.threads} threads"
    console.print(decoding(args), f"{args.agents} agents, {threads}, medians of {args.repeats} turns")
    console.print(waiting(args), f"chunks of {args.few} rows, {threads}, medians of {args.staggers}")


if __name__ == "__main__":
    main()
