"""Our SnapKV, StreamingLLM and H2O against kvpress 0.5.5, which needs an environment of its own: ``make peers``.

The same tiny random models and tokens on both sides, float32, one prefill: kvpress compresses once, behind it.

- Scores agree to 1e-4 relative, number by number (1e-6 when this was written), and what follows from them row by row:
  the last row kept and the first one dropped lie more than 4e-4 apart.
- The one intended difference: kvpress keeps rows per layer and KV head, as the papers of SnapKV and H2O keep them per
  head; ours survive in all layers or none, so that each has one slot and one position. We choose by the scores' sum.
- SnapKV (arXiv 2404.14469) pools by maximum over 7 in the paper, by mean over 5 in its published code. kvpress has the
  latter alone: kernel 5 and ``pooling="mean"`` of ours. The paper knows no grouped queries; kvpress takes the group's
  mean after pooling, we add its heads up: the same order.
- StreamingLLM (arXiv 2309.17453) numbers positions within the cache. kvpress does so under ``KeyRerotationPress`` only,
  we with ``survivors=move``; the rows are the same either way. Our sinks are the first rows of the history: behind a
  protected prefix, which kvpress has to be told as so many sinks more.
- H2O (arXiv 2306.14048) adds up the attention a row received and keeps a recent window. ``ObservedAttentionPress``
  divides by the number of queries that could see the row, which favours late rows, and has no window: the paper's is
  the sum, as ours.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch

from memory.construction.query_span import QuerySpan
from memory.construction.turns import Turns
from memory.engine.attention.observer import AttentionObserver
from memory.engine.base import Engine
from memory.engine.models.load import LoadedModel
from memory.engine.models.tiny_models import tiny_model
from memory.engine.transformers.cache_providers import PagedCacheProvider
from memory.engine.transformers.compact import compact
from memory.engine.transformers.engine import TransformersEngine
from memory.kv_cache.cache_view import CacheView, keep_best
from memory.kv_cache.paged import PagedCache
from memory.retention.h2o import H2O
from memory.retention.snapkv import SnapKV
from memory.retention.streaming import Streaming
from tests.waiting import PATIENCE

pytestmark = pytest.mark.peers

WORKER = Path(__file__).with_name("kvpress_worker.py")
ROWS, QUERY, WINDOW, KERNEL = 120, 6, 8, 5  # the query span, which we force, lies within SnapKV's window
TOKENS = torch.randperm(512, generator=torch.Generator().manual_seed(2))[:ROWS].tolist()  # no token twice, no near tie
FIRST, TOLD, SAID = 60, 54, 5  # an earlier turn ends, and where its instruction begins; of so many tokens
BUDGETS = (30, 60)
STREAMS = [(30, 4, 0), (60, 4, 0), (60, 0, 0), (30, 3, 10)]  # budget, sinks, protected rows
DEEP, SINGLE = ("qwen2", "llama"), ("qwen2 single", "llama single")


def stream(budget: int, sinks: int, **more: bool) -> dict[str, Any]:
    return {"press": "streaming", "budget": budget, "settings": {"n_sink": sinks}, **more}


CASES: dict[str, dict[str, Any]] = {
    **{
        f"snapkv {n}": {"press": "snapkv", "budget": n, "settings": {"window_size": WINDOW, "kernel_size": KERNEL}}
        for n in BUDGETS
    },
    **{f"streaming {case}": stream(case[0], case[1] + case[2]) for case in STREAMS},
    "streaming less": stream(30 - SAID, 4),
    "rerotated": stream(30, 4, rerotate=True),
    "observed": {"press": "observed", "budget": 60, "attention": "eager"},
}


def build(name: str) -> LoadedModel:
    """4 query heads on 2 KV heads in 4 layers, or on a single one in a single layer."""
    family, _, single = name.partition(" ")
    return tiny_model(family, layers=1, num_key_value_heads=1) if single else tiny_model(family, layers=4)


@dataclass(frozen=True)
class Seen:
    """What kvpress did: per layer and KV head the scores of all rows, the rows it kept, rising, and their keys."""

    scores: torch.Tensor  # (layers, kv_heads, rows)
    kept: torch.Tensor  # (layers, kv_heads, kept)
    keys: torch.Tensor  # (layers, kv_heads, kept, head_dim)

    @property
    def sets(self) -> list[list[int]]:
        """The kept rows of one KV head after another."""
        return self.kept.flatten(0, 1).tolist()


@dataclass(frozen=True)
class Pair:
    """One model: our cache behind the prompt, and what kvpress did, by name of the case."""

    engine: Engine
    cache: PagedCache
    spans: QuerySpan  # with the instruction of an earlier turn
    peer: dict[str, Seen]

    def view(self, protected: int = 0) -> CacheView:
        """As behind the first turn of a session."""
        return QuerySpan().view(self.cache, ROWS - QUERY, protected=protected)

    @cached_property
    def later(self) -> CacheView:
        """As behind a later turn."""
        return self.spans.view(self.cache, ROWS - QUERY)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """All models as kvpress sees them, each with its results."""
    python = os.environ.get("KEEP_AGENT_PEERS")
    if not python:
        pytest.skip("needs kvpress in an environment of its own: `make peers`, or KEEP_AGENT_PEERS=/path/to/its/python")
    root = tmp_path_factory.mktemp("peers")
    places = {name: root / name.replace(" ", "-") for name in DEEP + SINGLE}
    for name, folder in places.items():
        build(name).module.save_pretrained(folder)
        asked = {"tokens": TOKENS, "cases": list(CASES.values())}
        (folder / "cases.json").write_text(json.dumps(asked), encoding="utf-8")
    command = [Path(python).absolute(), "-I", WORKER, *places.values()]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return places


@pytest.fixture(scope="module", params=DEEP + SINGLE)
def pair(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Iterator[Pair]:
    results = json.loads((folders[request.param] / "results.json").read_text(encoding="utf-8"))
    peer = {
        name: Seen(*(torch.tensor(result[part]) for part in ("scores", "kept", "keys")))
        for name, result in zip(CASES, results, strict=True)
    }
    with TransformersEngine(build(request.param)) as engine:
        cache, spans = PagedCacheProvider(engine, Turns()).cache(AttentionObserver(WINDOW, mass=True)), QuerySpan()
        engine.extend(cache, TOKENS[:FIRST])
        spans.view(cache, TOLD, instruction=SAID)
        engine.extend(cache, TOKENS[FIRST:])
        yield Pair(engine, cache, spans, peer)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


def rows_of(mask: torch.Tensor) -> list[int]:
    return mask.nonzero()[:, 0].tolist()


def best(view: CacheView, budget: int, scores: torch.Tensor) -> list[int]:
    """The rows we keep by ``scores`` (rows,)."""
    return rows_of(keep_best(view, budget, lambda: scores[view.history]))


def grouped(stage: SnapKV, view: CacheView, pair: Pair) -> torch.Tensor:
    """(layers, kv_heads, rows before the window): the mean of our votes over the query heads of a KV head."""
    votes = torch.stack([stage.votes(view, layer) for layer in range(view.layers)])
    return votes.unflatten(1, (pair.engine.info.kv_heads, -1)).mean(2)


@pytest.mark.parametrize("case", STREAMS)
def test_streaming_keeps_the_same_rows(pair: Pair, case: tuple[int, int, int]) -> None:
    """The query span is forced; it is recent anyhow. Protected rows are so many sinks more."""
    budget, sinks, protected = case
    ours = rows_of(Streaming(budget, sinks).keep(pair.view(protected)))
    assert len(ours) == budget
    for theirs in pair.peer[f"streaming {case}"].sets:
        assert theirs == ours


def test_streaming_makes_room_for_an_old_instruction(pair: Pair) -> None:
    """We force it, kvpress knows none: it takes the place of as many of the least recent rows."""
    said = range(TOLD, TOLD + SAID)
    ours = rows_of(Streaming(30, 4).keep(pair.later))
    assert len(ours) == 30 and set(said) < set(ours)
    for theirs in pair.peer["streaming less"].sets:
        assert theirs == [row for row in ours if row not in said]


def test_streaming_turns_keys_to_their_places_in_the_cache(pair: Pair) -> None:
    """``survivors=move`` is kvpress's ``KeyRerotationPress``: keys agree to 1e-4 of the largest, and did not before."""
    cache, theirs = pair.cache.fork(), pair.peer["rerotated"]
    cache.drop(Streaming(30, 4).keep(pair.view()))
    assert theirs.sets == [cache.positions.tolist()] * len(theirs.sets)
    before = torch.stack([cache.keys(layer) for layer in range(pair.engine.info.layers)])
    compact(pair.engine.decoder, cache)
    ours = torch.stack([cache.keys(layer) for layer in range(pair.engine.info.layers)])
    limit = 1e-4 * ours.abs().max()
    assert (ours - theirs.keys).abs().max() < limit < (ours - before).abs().max()


def test_snapkv_gives_the_same_scores(pair: Pair) -> None:
    stage, view = SnapKV(60, WINDOW, KERNEL, "mean"), pair.view()
    close(grouped(stage, view, pair), pair.peer["snapkv 60"].scores[..., :-WINDOW])


@pytest.mark.parametrize("budget", BUDGETS)
def test_snapkv_keeps_the_same_rows_per_layer_and_head(pair: Pair, budget: int) -> None:
    """Where both choose by one head's votes; the window survives."""
    stage, view = SnapKV(budget, WINDOW, KERNEL, "mean"), pair.view()
    votes = torch.nn.functional.pad(grouped(stage, view, pair), (0, WINDOW), value=float("inf"))
    assert [best(view, budget, scores) for scores in votes.flatten(0, 1)] == pair.peer[f"snapkv {budget}"].sets


@pytest.mark.parametrize("budget", BUDGETS)
def test_snapkv_keeps_one_set_for_all_layers_and_heads(pair: Pair, budget: int) -> None:
    """It is the set that kvpress's own scores give, added up; with one layer and KV head it is kvpress's."""
    theirs, view = pair.peer[f"snapkv {budget}"], pair.view()
    ours = rows_of(SnapKV(budget, WINDOW, KERNEL, "mean").keep(view))
    assert ours == best(view, budget, theirs.scores.sum((0, 1)))
    if len(theirs.sets) == 1:
        assert theirs.sets == [ours]
    else:
        assert len({tuple(rows) for rows in theirs.sets}) == len(theirs.sets), "else they would say nothing"


def test_snapkv_told_otherwise_scores_otherwise(pair: Pair) -> None:
    """The scores tell the knobs apart."""
    view, theirs = pair.view(), pair.peer["snapkv 60"].scores[..., :-WINDOW]
    for stage in (SnapKV(60, WINDOW, KERNEL, "max"), SnapKV(60, WINDOW, KERNEL + 2, "mean")):
        with pytest.raises(AssertionError, match="not close"):
            close(grouped(stage, view, pair), theirs)


def test_h2o_adds_up_what_kvpress_averages(pair: Pair) -> None:
    """Times the queries that could see a row, kvpress's scores are the mass we choose by; without, others survive."""
    theirs, view, spec = pair.peer["observed"], pair.view(), pair.engine.info
    group, queries = spec.heads // spec.kv_heads, torch.arange(ROWS, 0, -1)
    mass = (theirs.scores * queries * group).sum((0, 1))
    close(view.mass, mass)
    ours = rows_of(H2O(60, recent=0).keep(view))
    assert ours == best(view, 60, mass) != best(view, 60, theirs.scores.sum((0, 1)))
