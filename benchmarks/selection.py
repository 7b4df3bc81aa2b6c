"""Benchmark of row selection: the recompute stage's share of a prefill.

    python -m benchmarks.selection [--threads N] [--repeats N] [--shapes qwen2.5-0.5b] [--tokens 1024 2048]

Weights are random; the query has 30 tokens, each segment a KV block of nine tokens (the last one may have fewer).
``choice`` is the time in the recompute stage, including the computations that it requests; ``prefill`` is the whole
prefill. Stages take turns, so that other load affects all of them equally; the table shows medians.

Lines named ``latent`` measure latent retrieval, which selects 128 blocks of 16 tokens (by default, all blocks).
``prefill`` is the query's prefill over these blocks; ``choice`` ranks the blocks by their key boxes at the early layers
or at all. ``pass`` is the extra forward pass for the query states (``layers=each``, not measured here, needs none).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from rich.table import Table

from benchmarks.engine import QUERY, Prompt
from benchmarks.timing import TimedStage
from keep_agent.console import make_console
from memory.engine.base import Engine
from memory.engine.models.load import load_model
from memory.engine.transformers.engine import TransformersEngine
from memory.kv_cache.key_boxes import KeyBoxes, KeyBoxIndex
from memory.loading.layer_balanced import LayerBalanced
from memory.loading.next_layer import NextLayer
from memory.prompt.layout import Layout, Unit, lay_out, place
from memory.recompute.first_tokens import FirstTokens
from memory.recompute.multi_hop import MultiHop
from memory.recompute.none import Nothing
from memory.recompute.sparse_query import SparseQuery
from memory.recompute.value_deviation import ValueDeviation
from memory.retrieval.latent import Latent
from memory.stages import Recompute

BLOCK = 16
STAGES: dict[str, Recompute] = {
    "multi_hop (importance)": MultiHop(),
    "value_deviation, gradual": ValueDeviation(),
    "value_deviation, single": ValueDeviation(selection="single"),
    "sparse_query (Sparse-Q)": SparseQuery(),
    "first_tokens (no choice)": FirstTokens(k=2),
}


@dataclass(frozen=True, slots=True)
class SelectionTimes:
    prefill: float  # ms
    choice: float  # ms
    computed: float  # share of rows x layers

    @property
    def share(self) -> float:
        return self.choice / self.prefill


def time_stage(engine: Engine, layout: Layout, stage: Recompute) -> SelectionTimes:
    timed = TimedStage(stage)
    start = time.perf_counter()
    result = engine.prefill(layout, timed, LayerBalanced())
    whole = 1e3 * (time.perf_counter() - start)
    return SelectionTimes(whole, sum(timed.times), result.trace.computed_ratio)


def measure(engine: Engine, tokens: int, repeats: int) -> dict[str, SelectionTimes]:
    """Return medians by stage; the first two rounds warm up."""
    prompt = Prompt.random(tokens, engine.info.vocab)
    layout = prompt.layout(engine.encode([(None, unit) for unit in prompt.units]))
    runs: dict[str, list[SelectionTimes]] = {name: [] for name in STAGES}
    for number in range(repeats + 2):
        for name, stage in STAGES.items():
            result = time_stage(engine, layout, stage)
            if number >= 2:
                runs[name].append(result)
    return {name: _median(results) for name, results in runs.items()}


@dataclass(frozen=True, slots=True)
class LatentTimes:
    prefill: float  # ms of the query's prefill over the selected blocks
    choice: float  # ms for choosing blocks by their key boxes
    query_pass: float  # ms of the extra pass that computes the query states


def measure_latent(engine: Engine, tokens: int, repeats: int, scoring_layers: str) -> LatentTimes:
    """Return medians; the first two rounds warm up."""
    retrieval = Latent(layers=scoring_layers)
    layers = retrieval.scoring_layers(engine.info.layers)
    draw = torch.randint(5, engine.info.vocab, (tokens + QUERY,), generator=torch.Generator().manual_seed(0)).tolist()
    units = [Unit.of("block", [(str(i), draw[i : i + BLOCK])]) for i in range(0, tokens, BLOCK)]
    blocks, query = engine.encode([(None, unit.token_ids) for unit in units]), draw[tokens:]
    spec = engine.info
    index = KeyBoxIndex(layers, spec.kv_heads, spec.head_dim, torch.float32, engine.device)
    index.append(KeyBoxes.around([block.k for block in blocks], layers))
    times: list[tuple[float, float, float]] = []
    for _ in range(repeats + 2):
        marks = [time.perf_counter()]
        states = engine.query_states(None, query, layers)
        marks.append(time.perf_counter())
        top = retrieval.choose(states, index)
        marks.append(time.perf_counter())
        placements = place([units[i] for i in top], 0, [blocks[i] for i in top], [True] * len(top))
        layout = lay_out((), placements, query, True, engine.device)
        marks.append(time.perf_counter())
        engine.prefill(layout, Nothing(), NextLayer())
        marks.append(time.perf_counter())
        query_pass, choice, _, prefill = (1e3 * (b - a) for a, b in pairwise(marks))
        times.append((prefill, choice, query_pass))
    return LatentTimes(*map(statistics.median, zip(*times[2:], strict=True)))


def _median(runs: Sequence[SelectionTimes]) -> SelectionTimes:
    prefill, choice = (statistics.median(getattr(run, part) for run in runs) for part in ("prefill", "choice"))
    return SelectionTimes(prefill, choice, sorted(runs, key=lambda run: run.share)[len(runs) // 2].computed)


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
                for name, result in measure(engine, tokens, args.repeats).items():
                    times = f"{result.prefill:.1f}", f"{result.choice:.2f}", f"{100 * result.share:.1f} %"
                    table.add_row(shape, str(tokens), name, *times, f"{result.computed:.2f}")
                for layers in ("early", "all"):
                    latent = measure_latent(engine, tokens, args.repeats, layers)
                    share = f"{100 * latent.choice / latent.prefill:.1f} %"
                    name = f"latent ({layers}; pass {latent.query_pass:.0f} ms)"
                    table.add_row(shape, str(tokens), name, f"{latent.prefill:.1f}", f"{latent.choice:.2f}", share, "")
    make_console(140).print(table, f"{args.dtype}, {args.threads} threads, medians of {args.repeats} rounds")


if __name__ == "__main__":
    main()
