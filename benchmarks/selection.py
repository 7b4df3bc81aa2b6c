"""Cost of choosing: the share of a prefill that goes into its recompute stage's choice.

    python -m benchmarks.selection [--threads N] [--repeats N] [--shapes qwen2.5-0.5b] [--tokens 1024 2048]

Random weights, segments of nine tokens that are all stored, a query of 30. ``choice`` is the time inside the stage with
everything it asks the probe for; ``prefill`` is the whole prefill it steers, choice included. Stages take turns, so
that a busy machine is busy for all of them; medians are shown.

For a latent retrieval the memory is cut into blocks of 16 tokens, of which 128 are chosen; ``prefill`` is that of the
query over them, ``choice`` the scoring of the boxes by the early layers (as configured) or by all, ``pass`` the extra
pass that makes their query states, which a choice layer by layer does without.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from rich.table import Table

from benchmarks.engine import QUERY, Prompt
from keep_agent.console import make_console
from memory.engine.base import Engine
from memory.engine.models.load import load_model
from memory.engine.transformers.engine import TransformersEngine
from memory.kv_cache.key_boxes import KeyBoxes, KeyBoxIndex
from memory.loading.layer_balanced import LayerBalanced
from memory.loading.next_layer import NextLayer
from memory.prompt.layout import Layout, lay_out, place
from memory.prompt.units import Unit
from memory.recompute.first_tokens import FirstTokens
from memory.recompute.multi_hop import MultiHop
from memory.recompute.none import Nothing
from memory.recompute.sparse_query import SparseQuery
from memory.recompute.value_deviation import ValueDeviation
from memory.retrieval.latent import Latent
from memory.stages import Capabilities, Probe, Recompute

BLOCK = 16
STAGES: dict[str, Recompute] = {
    "multi_hop (importance)": MultiHop(),
    "value_deviation, gradual": ValueDeviation(),
    "value_deviation, single": ValueDeviation(selection="single"),
    "sparse_query (Sparse-Q)": SparseQuery(),
    "first_tokens (no choice)": FirstTokens(k=2),
}


@dataclass
class Timed:
    """A recompute stage with a stop watch."""

    stage: Recompute
    seconds: list[float] = field(default_factory=list)

    @property
    def capabilities(self) -> Capabilities:
        return self.stage.capabilities

    def first(self, layout: Layout, layers: int) -> torch.Tensor:
        began = time.perf_counter()
        rows = self.stage.first(layout, layers)
        self._count(began)
        return rows

    def narrow(self, layer: int, active: torch.Tensor, probe: Probe) -> torch.Tensor:
        began = time.perf_counter()
        rows = self.stage.narrow(layer, active, probe)
        self._count(began)
        return rows

    def _count(self, began: float) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - began)


@dataclass(frozen=True, slots=True)
class Run:
    prefill: float  # ms
    choice: float  # ms
    computed: float  # share of token-layers

    @property
    def share(self) -> float:
        return self.choice / self.prefill


def run(engine: Engine, layout: Layout, stage: Recompute) -> Run:
    timed = Timed(stage)
    began = time.perf_counter()
    result = engine.prefill(layout, timed, LayerBalanced())
    whole = 1e3 * (time.perf_counter() - began)
    return Run(whole, 1e3 * sum(timed.seconds), result.trace.computed_ratio)


def measure(engine: Engine, tokens: int, repeats: int) -> dict[str, Run]:
    """Medians by stage; the first two rounds warm up."""
    prompt = Prompt.random(tokens, engine.info.vocab)
    layout = prompt.layout(engine.encode([(None, unit) for unit in prompt.units]))
    runs: dict[str, list[Run]] = {name: [] for name in STAGES}
    for number in range(repeats + 2):
        for name, stage in STAGES.items():
            one = run(engine, layout, stage)
            if number >= 2:
                runs[name].append(one)
    return {name: _median(own) for name, own in runs.items()}


@dataclass(frozen=True, slots=True)
class LatentRun:
    prefill: float  # ms, of the query over the chosen blocks
    choice: float  # ms, boxes to block numbers
    asking: float  # ms, the pass for query states


def measure_latent(engine: Engine, tokens: int, repeats: int, asked: str) -> LatentRun:
    """Medians; the first two rounds warm up."""
    retrieval = Latent(layers=asked)
    layers = retrieval.voters(engine.info.layers)
    draw = torch.randint(5, engine.info.vocab, (tokens + QUERY,), generator=torch.Generator().manual_seed(0)).tolist()
    units = [Unit.of("block", [(str(i), draw[i : i + BLOCK])]) for i in range(0, tokens, BLOCK)]
    blocks, query = engine.encode([(None, unit.token_ids) for unit in units]), draw[tokens:]
    spec = engine.info
    index = KeyBoxIndex(layers, spec.kv_heads, spec.head_dim, torch.float32, engine.device)
    index.append(KeyBoxes.around([block.k for block in blocks], layers))
    times: list[LatentRun] = []
    for _ in range(repeats + 2):
        marks = [time.perf_counter()]
        states = engine.query_states(None, query, layers)
        marks.append(time.perf_counter())
        chosen = retrieval.choose(states, index)
        marks.append(time.perf_counter())
        placed = place([units[i] for i in chosen], 0, [blocks[i] for i in chosen], [True] * len(chosen))
        layout = lay_out((), placed, query, True, engine.device)
        marks.append(time.perf_counter())
        engine.prefill(layout, Nothing(), NextLayer())
        marks.append(time.perf_counter())
        asking, choice, _, prefill = (1e3 * (b - a) for a, b in pairwise(marks))
        times.append(LatentRun(prefill, choice, asking))
    return LatentRun(
        *(statistics.median(getattr(t, part) for t in times[2:]) for part in ("prefill", "choice", "asking"))
    )


def _median(runs: Sequence[Run]) -> Run:
    middle = sorted(runs, key=lambda one: one.share)[len(runs) // 2]
    return Run(
        statistics.median(one.prefill for one in runs), statistics.median(one.choice for one in runs), middle.computed
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--shapes", nargs="+", default=["qwen2.5-0.5b"])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 2048])
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    table = Table("shape", "tokens", "stage", "prefill ms", "choice ms", "choice / prefill", "computed")
    for shape in args.shapes:
        with TransformersEngine(load_model(shape, dtype=args.dtype, init="random")) as engine:
            for tokens in args.tokens:
                for name, one in measure(engine, tokens, args.repeats).items():
                    times = f"{one.prefill:.1f}", f"{one.choice:.2f}", f"{100 * one.share:.1f} %"
                    table.add_row(shape, str(tokens), name, *times, f"{one.computed:.2f}")
                for asked in ("early", "all"):
                    one = measure_latent(engine, tokens, args.repeats, asked)
                    times = f"{one.prefill:.1f}", f"{one.choice:.2f}", f"{100 * one.choice / one.prefill:.1f} %"
                    table.add_row(shape, str(tokens), f"latent ({asked}; pass {one.asking:.0f} ms)", *times, "")
    make_console(140).print(table, f"{args.dtype}, {args.threads} threads, medians of {args.repeats} rounds")


if __name__ == "__main__":
    main()
