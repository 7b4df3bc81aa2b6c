"""Benchmark of serving several agents: batched against sequential decoding, and a short request during a long one.

    python -m benchmarks.serving [--threads N] [--repeats N] [--shapes planner-tiny qwen2.5-0.5b] [--agents N]

Weights are random, in bfloat16. The first table shows tokens per second of all agents, ``together`` in a batch and
``alone`` one after another, over paged bfloat16 caches and over caches of 4 bits. Both ways take turns, so that other
load affects them equally, and the ratio is the median over the turns. In the second table agent A sends a long prompt,
and agent B a short one after A's first chunk. It shows the milliseconds from each request to its first token:
``interleaved`` by the scheduler, or ``in order of arrival``, in which B waits for A's complete answer.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass

import torch
from rich.table import Table

from benchmarks.timing import timed
from keep_agent.console import make_console
from memory.engine.base import ChunkSchedule, Engine
from memory.engine.models.load import load_model
from memory.engine.scheduler.batch import Batch, Member
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
LONG_PROMPT = {"planner-tiny": 3072, "qwen2.5-0.5b": 2048}  # tokens in A's prompt
SHORT_PROMPT, ANSWER_TOKENS = 32, 16


def some_ids(count: int, seed: int = 0) -> list[int]:
    return torch.randint(5, 4000, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def empty_cache(engine: Engine, format: PackFormat | None) -> Member:
    spec, device = engine.info, engine.device
    if format is not None:
        return QuantizedCache(spec, format, device)
    return PagedCache(KVPool(spec.layers, spec.kv_heads, spec.head_dim, spec.dtype, device))


def filled_caches(engine: Engine, format: PackFormat | None, count: int, tokens: int) -> list[Member]:
    """Return caches of about ``tokens`` rows each, all different; paged caches share one pool."""
    first = empty_cache(engine, format)
    caches = [first, *(empty_cache(engine, format) if format else PagedCache(first.pool) for _ in range(count - 1))]
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
    """Return medians of ``repeats`` turns, after two turns to warm up."""
    caches, batched = (filled_caches(engine, format, count, tokens) for _ in range(2))
    batch = Batch(engine.decoder, batched)

    def alone() -> None:
        for cache in caches:
            append(engine.decoder, cache, torch.tensor([7], device=engine.device))

    turns = [(timed(lambda: batch.step([7] * count)), timed(alone)) for _ in range(repeats + 2)][2:]
    together, single = (statistics.median(times) for times in zip(*turns, strict=True))
    return Rates(1e3 * count / together, 1e3 * count / single, statistics.median(b / a for a, b in turns))


@dataclass(frozen=True)
class Waits:
    """Seconds from each request to its first token."""

    short: float
    long: float


def staggered(engine: Engine, format: PackFormat | None, rows: int, few: int, interleaved: bool) -> Waits:
    """Run a long request, and a short one that arrives after the first chunk of the long one."""
    config = SchedulerConfig(ChunkSchedule(steps=(), rest=few), shared_chunk=few)
    scheduler = Scheduler(engine, config, automatic=False)
    start, a, b = time.perf_counter(), empty_cache(engine, format), empty_cache(engine, format)
    long = scheduler.submit("A", a, some_ids(rows), ANSWER_TOKENS)
    scheduler.turn()
    scheduler.turn()
    arrival = time.perf_counter()
    if not interleaved:
        first = until_first(scheduler, long)
        scheduler.run_until_idle()
    short = until_first(scheduler, scheduler.submit("B", b, some_ids(SHORT_PROMPT, 1), ANSWER_TOKENS))
    return Waits(short - arrival, (until_first(scheduler, long) if interleaved else first) - start)


def until_first(scheduler: Scheduler, stream: Stream) -> float:
    """Run the scheduler until the stream's first token; return the time."""
    while stream.first_turn is None:
        scheduler.turn()
    return time.perf_counter()


def decoding(args: argparse.Namespace) -> Table:
    table = Table("shape", "cache", "context", "together tokens/s", "alone tokens/s", "ratio")
    for shape in args.shapes:
        with TransformersEngine(load_model(shape, dtype="bfloat16", init="random")) as engine:
            for name, format in FORMATS.items():
                for tokens in args.tokens:
                    result = rates(engine, format, args.agents, tokens, args.repeats)
                    numbers = f"{result.together:.1f}", f"{result.alone:.1f}", f"{result.ratio:.1f}"
                    table.add_row(shape, name, str(tokens), *numbers)
    return table


def waiting(args: argparse.Namespace) -> Table:
    table = Table("shape", "cache", "A's tokens", "order", "B's first token ms", "A's first token ms")
    for shape in args.shapes:
        with TransformersEngine(load_model(shape, dtype="bfloat16", init="random")) as engine:
            for name, format in FORMATS.items():
                results: dict[str, list[Waits]] = {"interleaved": [], "in order of arrival": []}
                for _ in range(args.staggers):
                    for order, waits in results.items():
                        waits.append(staggered(engine, format, LONG_PROMPT[shape], args.few, order == "interleaved"))
                for order, waits in results.items():
                    times = (1e3 * statistics.median(getattr(w, name) for w in waits) for name in ("short", "long"))
                    table.add_row(shape, name, str(LONG_PROMPT[shape]), order, *(f"{ms:.0f}" for ms in times))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--staggers", type=int, default=3)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 2048])
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("--few", type=int, default=256, help="rows per chunk")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    console, threads = make_console(140), f"{args.threads} threads"
    console.print(decoding(args), f"{args.agents} agents, {threads}, medians of {args.repeats} turns")
    console.print(waiting(args), f"chunks of {args.few} rows, {threads}, medians of {args.staggers}")


if __name__ == "__main__":
    main()
