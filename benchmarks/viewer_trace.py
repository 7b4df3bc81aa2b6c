"""Synthetic run folder for the viewer, with all fields of a trace and any number of steps, layers and segments."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keep_agent.rollout.results import PARTS
from keep_agent.rollout.run_folder import CONFIG, TRACE
from keep_agent.rollout.trace import SCHEMA

TOKENS = 12  # tokens per segment
CONTEXT, QUERY = 8, 60  # rows
GROUP = 10  # segments per static group
HOP_LAYERS = 4  # every fourth layer selects rows


@dataclass(frozen=True)
class Size:
    steps: int = 1000
    layers: int = 48
    segments: int = 200


def write_run(folder: Path, size: Size, seed: int = 0) -> Path:
    """Write a run of one episode into a new folder; return the folder."""
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text(json.dumps({"planner": {"name": "synthetic"}}), encoding="utf-8")
    with (folder / TRACE).open("w", encoding="utf-8") as stream:
        for entry in entries(size, seed):
            stream.write(json.dumps(entry, separators=(",", ":")) + "\n")
    return folder


def entries(size: Size, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the entries of the trace: start of the episode, steps, end of the task."""
    dice = random.Random(seed)
    instruction = "Put all the mugs away."
    task = {"id": "long", "type": "synthetic", "instruction": instruction}
    yield _entry("episode", index=0, skills="grounded", tasks=[task])
    for number in range(size.steps):
        yield step(number, size, instruction, dice)
    outcome = {"success": True, "met": 3, "total": 3, "steps": size.steps, "expert_steps": 20, "stop": "success"}
    yield _entry("task", task=0, **task, **outcome)


def step(number: int, size: Size, instruction: str, dice: random.Random) -> dict[str, Any]:
    names = [_name(index) for index in range(size.segments)]
    changed = range(size.segments) if number == 0 else sorted(dice.sample(range(size.segments), min(3, size.segments)))
    rows = CONTEXT + size.segments * TOKENS + QUERY
    return _entry(
        "step",
        task=0,
        step=number,
        instruction=instruction,
        facts=[_fact(index, number, dice) for index in changed],
        skill=f"go to cabinet {number % 20}",
        ok=dice.random() < 0.9,
        message="" if number % 10 else "Nothing happens.",
        scores=[[f"go to cabinet {number % 20 + rank}", round(-rank - dice.random(), 4)] for rank in range(5)],
        goal=[min(3, number * 4 // size.steps), 3],
        extra={"written": [[names[index], f"mug {names[index]} cabinet_{number % 20}\n"] for index in changed]},
        token_ids=[dice.randrange(150_000) for _ in range(rows)],
        context=CONTEXT,
        query=CONTEXT + size.segments * TOKENS,
        units=list(_units(size, set(changed) if number else set(range(size.segments)), dice)),
        segments=[
            {"id": name, "start": _row(index), "stop": _row(index + 1), "last_layer": dice.randrange(-1, size.layers)}
            for index, name in enumerate(names)
        ],
        active_rows=[max(QUERY, rows - rows * layer // size.layers) for layer in range(size.layers)],
        hops=[_hops(layer, names, dice) for layer in range(2, size.layers, HOP_LAYERS)],
        **_clock(size.layers, dice),
        flips=[{"group": "cabinet", "static": True}] if number % 50 == 1 else [],
        cold=number == 0,
        timings={part: round(10 * dice.random(), 3) for part in PARTS} | {"ttft": 60.0, "score": 40.0},
    )


def _entry(event: str, **fields: Any) -> dict[str, Any]:
    return {"v": SCHEMA, "event": event, "episode": "long-1", **fields}


def _name(index: int) -> str:
    return f"mug_{index}"


def _row(index: int) -> int:
    return CONTEXT + index * TOKENS


def _fact(index: int, number: int, dice: random.Random) -> dict[str, Any]:
    place = f"cabinet_{dice.randrange(20)}"
    return {"id": _name(index), "category": "object", "type": "mug", "place": place, "states": [f"seen{number % 3}"]}


def _units(size: Size, changed: set[int], dice: random.Random) -> Iterator[dict[str, Any]]:
    """Yield the units: the first half of the segments in static groups, the others one by one."""
    half = size.segments // 2
    spans = [(first, min(first + GROUP, half)) for first in range(0, half, GROUP)]
    spans += [(index, index + 1) for index in range(half, size.segments)]
    for first, last in spans:
        tokens, hit = (last - first) * TOKENS, changed.isdisjoint(range(first, last))
        kind = "static_group" if last - first > 1 else "segment"
        block = f"{dice.getrandbits(64):016x}"
        yield {"kind": kind, "start": _row(first), "tokens": tokens, "hit": hit, "block": block}


def _hops(layer: int, names: list[str], dice: random.Random) -> dict[str, Any]:
    targets = dice.sample(names, min(12, len(names)))
    sources = ["", "", *targets]
    edges = [[sources[min(i, 2 + i // 2)], name, round(dice.random() / 9, 6)] for i, name in enumerate(targets)]
    return {"layer": layer, "hops": 2, "edges": edges}


def _clock(layers: int, dice: random.Random) -> dict[str, Any]:
    """Return loads and computations; each layer is loaded during the previous layer's computation."""
    loads, computes, clock = [], [], 0.0
    for layer in range(layers):
        loads.append([layer, layer + 1, round(max(0.0, clock - 1), 3), round(clock + dice.random() / 2, 3), 98304])
        for piece, longest in (("attention", 2.0), ("importance", 0.3), ("mlp", 2.5)):
            end = clock + longest * (0.5 + dice.random() / 2)
            computes.append([layer, piece, round(clock, 3), round(end, 3)])
            clock = end
    return {"loads": loads, "computes": computes}
