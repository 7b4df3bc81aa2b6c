"""Fixtures of the stages' benchmarks: a house, stored prompts, and the floor of a measurement.

    make bench [ARGS="-k retrieval"]

Every benchmark records its size in ``extra_info``. Most also record a floor: the time that the operations and bytes of
the work need at this machine's rates for a large matrix product and a memory copy. Work that fits into the processor's
caches can be faster than its floor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import TypeAlias

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.house import House
from eval.latency.floor import StepWork
from eval.latency.machine import RateMeter, Rates
from memory.engine.base import Engine
from memory.engine.models.load import load_model
from memory.engine.transformers.engine import TransformersEngine
from memory.prompt.layout import Layout, Unit, lay_out, place

SEGMENT, QUERY = 20, 8  # tokens
SAMPLES = 5
LINES = pytest.StashKey[list[str]]()
Note: TypeAlias = Callable[..., None]


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LINES] = []


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Use one thread, so that results are independent of the number of cores and depend less on other processes."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def rates() -> Rates:
    meter = RateMeter(torch.device("cpu"), torch.float32)
    return Rates.median([meter.sample() for _ in range(SAMPLES)])


@pytest.fixture
def note(benchmark: BenchmarkFixture, request: pytest.FixtureRequest) -> Iterator[Note]:
    """Return ``note(flops, copied, loaded, size=...)``, which records the minimum work of a benchmark and its size."""
    work: list[StepWork] = []

    def record(flops: int = 0, copied: int = 0, loaded: int = 0, **size: float | str) -> None:
        benchmark.extra_info.update(size)
        if flops or copied or loaded:
            work.append(StepWork((flops,), (copied,), loaded))

    yield record
    if benchmark.stats is None or not work:  # a run without measurement
        return
    floor, median = work[0].floor_ms(request.getfixturevalue("rates")), 1e3 * benchmark.stats.stats.median
    benchmark.extra_info.update(floor_ms=floor, of_floor=median / floor)
    line = f"{request.node.name:60}{median:10.3f} ms  floor {floor:8.3f} ms  {median / floor:6.1f} x"
    request.config.stash[LINES].append(line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash[LINES]:
        terminalreporter.section("medians and floors")
        terminalreporter.write_line("\n".join(config.stash[LINES]))


@pytest.fixture(scope="session")
def house_of() -> Callable[[int], House]:
    """Return a function from a number of segments to a house. Benchmarks share houses and must keep their sizes."""
    return cache(House)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """Return an engine of planner-tiny's shape with random weights."""
    with TransformersEngine(load_model("planner-tiny", "bfloat16", init="random")) as engine:
        yield engine


@pytest.fixture(scope="session")
def stored(engine: Engine) -> Callable[[int], Layout]:
    """Return a function from a number of segments to a prompt of segments (each a unit with a KV block) and a query."""

    @cache
    def layout(segments: int) -> Layout:
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(5, engine.info.vocab, (segments * SEGMENT + QUERY,), generator=generator).tolist()
        units = [Unit.of("segment", [(f"s{n}", ids[n * SEGMENT :][:SEGMENT])]) for n in range(segments)]
        blocks = engine.encode([(None, unit.token_ids) for unit in units])
        placements = place(units, 0, blocks, [True] * segments)
        return lay_out((), placements, ids[-QUERY:], True, engine.device)

    return layout
