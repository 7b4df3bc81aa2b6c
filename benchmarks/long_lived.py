"""Benchmark of an agent's memory use while it plans for thousands of steps and facts change.

    python -m benchmarks.long_lived [--steps N] [--every N] [--planner NAME] [--model NAME] [--threads N] [--durable]
        [--json FILE] [--csv FILE] [--plot FILE] [KEY=VALUE ...]

The agent lives in a house of 31 entities. In every step two facts change, the agent plans one skill and gets its
outcome; a task is drawn every 25 steps. Nine of ten skills succeed. ``rss`` is the resident memory of the process,
``heap`` the memory allocated by glibc, ``kv`` the stored keys and values, all in MiB; ``journal`` is the journal of a
durable agent in KiB. The caption compares the final RSS with the RSS after the first fifth of the steps.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any

from rich.progress import track
from rich.table import Table

from eval.common.plots import check_figure, figure, style
from eval.common.tables import show, table_of
from keep_agent import Agent, Fact, Outcome
from keep_agent.agent.durable import JOURNAL, DurableAgent
from keep_agent.config.planner_factory import make_resources
from keep_agent.console import make_console

MIB = 1 << 20
PLACES = (*(f"cabinet_{i}" for i in range(1, 9)), "fridge_1", "sink_1", "countertop_1")
TYPES = ("mug", "apple", "knife", "plate", "potato")
OBJECTS = tuple((f"{type}_{i}", type) for type in TYPES for i in range(1, 5))
STATES = ("dirty", "hot", "sliced")
SKILLS = (*(f"go to {place.replace('_', ' ')}" for place in PLACES), "done")
TASK = 25  # steps per task


@dataclass(frozen=True)
class Row:
    """Memory of the process and the agent after ``step`` steps."""

    step: int
    seconds: float
    rss: float
    heap: float
    kv: float
    blocks: int
    segments: int
    journal: float


class _MallInfo(ctypes.Structure):
    """``struct mallinfo2`` of malloc.h."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
    ))  # fmt: skip


def resident() -> float:
    """Return the resident MiB of this process (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / MIB


def heap() -> float:
    """Return the MiB allocated by glibc; 0 with another C library."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return 0.0
    mallinfo.restype = _MallInfo
    info = mallinfo()
    return (info.uordblks + info.hblkhd) / MIB


class House:
    """Source of changing facts and of skill outcomes, random with a fixed seed."""

    def __init__(self, seed: int = 7) -> None:
        self._rng = random.Random(seed)
        self._instruction = ""

    def furniture(self) -> list[Fact]:
        places = [Fact(place, "receptacle", place.split("_")[0]) for place in PLACES]
        agent = Fact("agent", "agent", "agent", place="sink_1")
        return [*places, *(self._random_fact(*item) for item in OBJECTS), agent]

    def live(self, agent: Agent | DurableAgent, step: int) -> None:
        """Run one step: two facts change, the agent plans a skill and gets its outcome."""
        rng = self._rng
        agent.observe([self._random_fact(*item) for item in rng.sample(OBJECTS, 2)])
        if step % TASK == 0:
            self._instruction = f"put a {rng.choice(TYPES)} in the fridge"
        target = rng.choice(OBJECTS)[0].replace("_", " ")
        agent.plan(self._instruction, [*SKILLS, f"pick up {target}"])
        agent.report(Outcome(rng.random() < 0.9, "blocked"))

    def _random_fact(self, id: str, type: str) -> Fact:
        states = tuple(sorted(self._rng.sample(STATES, self._rng.randint(0, 1))))
        return Fact(id, "object", type, place=self._rng.choice(PLACES), states=states)


def measure(args: argparse.Namespace) -> Iterator[Row]:
    """Yield a row before the first step, and one after every ``args.every`` steps."""
    overrides = f"planner={args.planner}", f"model={args.model}", f"eval.threads={args.threads}", *args.overrides
    with ExitStack() as stack:
        planner = make_resources(overrides).planner("robot")
        stack.callback(planner.close)
        agent, storage = Agent(planner, "robot"), planner.session.method.storage
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        facade = DurableAgent(agent, folder) if args.durable else agent
        stack.callback(facade.close)
        house, start = House(), time.perf_counter()
        facade.observe(house.furniture())

        def row(step: int) -> Row:
            stats, journal = storage.stats(), folder / JOURNAL
            kib = journal.stat().st_size / 1024 if journal.exists() else 0.0
            sizes = resident(), heap(), stats["bytes"] / MIB
            return Row(step, time.perf_counter() - start, *sizes, stats["blocks"], agent.segments, kib)

        yield row(0)
        for step in track(range(args.steps), "steps", console=make_console(stderr=True), transient=True):
            house.live(facade, step)
            if (step + 1) % args.every == 0:
                yield row(step + 1)


def growth(rows: Sequence[Row]) -> float:
    """Return the relative growth of RSS after the first fifth of the steps: 0.1 means ten percent."""
    fifth = next(row for row in rows if row.step >= rows[-1].step / 5)
    return rows[-1].rss / fifth.rss - 1


def memory_table(rows: Sequence[Row]) -> Table:
    """Return a table of about ten to twenty rows."""
    title = f"one agent, {rows[-1].step:,} steps: MiB, and KiB of the journal"
    caption = f"RSS grew by {100 * growth(rows):+.1f} % since a fifth of the steps"
    every = max(1, (len(rows) - 1) // 10)
    some = [row for number, row in enumerate(rows) if number % every == 0 or row is rows[-1]]
    cells = ([f"{value:,.0f}" for value in astuple(row)] for row in some)
    return table_of(title, [], [field.name for field in fields(Row)], cells, caption)


def draw(rows: Sequence[Row], file: Path) -> None:
    """Draw resident memory, heap, and keys and values over steps."""
    steps = [row.step for row in rows]
    with figure(file) as (axis,):
        for number, name in enumerate(("rss", "heap", "kv")):
            look: dict[str, Any] = {**style(number), "markevery": max(1, len(rows) // 12)}
            axis.plot(steps, [getattr(row, name) for row in rows], label=name, **look)
        axis.set_xlabel("steps of one agent", fontsize=8)
        axis.set_ylabel("MiB", fontsize=8)
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=8)


def write(rows: Sequence[Row], args: argparse.Namespace) -> None:
    """Write the rows so far to the JSON and CSV files, if given."""
    if args.json:
        record = {"command": sys.argv[1:], "rows": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    if args.csv:
        with args.csv.open("w", newline="") as stream:
            lines = csv.writer(stream)
            lines.writerow(field.name for field in fields(Row))
            lines.writerows(astuple(row) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--every", type=int, default=50, help="steps between measurements")
    parser.add_argument("--planner", default="keep")
    parser.add_argument("--model", default="planner-tiny")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--durable", action="store_true", help="use an agent with a journal, as the server does")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_intermixed_args()
    if args.plot:
        check_figure(args.plot)
    rows: list[Row] = []
    for row in measure(args):
        rows.append(row)
        write(rows, args)
    if args.plot:  # after the measurement, because drawing itself takes memory
        draw(rows, args.plot)
    show(memory_table(rows), False, make_console())


if __name__ == "__main__":
    main()
