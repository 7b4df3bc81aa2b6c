"""Comparison of SnapKV, StreamingLLM and H2O with kvpress 0.5.5, which needs a separate environment: ``make peers``.

Both sides run the same tiny random models and tokens in float32 with one prefill, after which kvpress compresses once.

- Scores agree to 1e-4 relative, and the surviving rows are the same: the scores of the last surviving and the first
  dropped row differ by more than 4e-4.
- One difference is intended: kvpress selects rows per layer and KV head, as the papers of SnapKV and H2O do per head;
  here a row survives in all layers or in none, so that it has one slot and one position. Rows are selected by the sum
  of the scores.
- SnapKV (arXiv 2404.14469) uses max pooling over 7 rows in the paper and mean pooling over 5 in its published code.
  kvpress implements only the latter: kernel 5 and ``pooling="mean"``. The paper has no grouped queries; kvpress takes
  the mean of a group after pooling, this project the sum, which gives the same order.
- StreamingLLM (arXiv 2309.17453) uses positions within the cache: kvpress with ``KeyRerotationPress``, this project
  with ``survivors=move``; the rows are the same in any case. The sinks are the first rows after a protected prefix,
  which are additional sinks in kvpress.
- H2O (arXiv 2306.14048) sums the attention that a row receives and keeps a recent window, as this project does.
  ``ObservedAttentionPress`` divides by the number of queries that can see the row, which favours late rows, and has no
  window.
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
from memory.engine.transformers.cache_providers import PagedCacheProvider, compact
from memory.engine.transformers.engine import TransformersEngine
from memory.kv_cache.cache_view import CacheView, keep_best
from memory.kv_cache.paged import PagedCache
from memory.retention.h2o import H2O
from memory.retention.snapkv import SnapKV
from memory.retention.streaming import Streaming
from tests.waiting import PATIENCE

pytestmark = pytest.mark.peers

WORKER = Path(__file__).with_name("kvpress_worker.py")
ROWS, QUERY, WINDOW, KERNEL = 120, 6, 8, 5  # SnapKV's window contains the query span, which always survives here
TOKENS = torch.randperm(512, generator=torch.Generator().manual_seed(2))[:ROWS].tolist()  # distinct, without near ties
FIRST, INSTRUCTION, LENGTH = 60, 54, 5  # end of an earlier turn; start and length of its instruction
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
    "streaming less": stream(30 - LENGTH, 4),
    "rerotated": stream(30, 4, rerotate=True),
    "observed": {"press": "observed", "budget": 60, "attention": "eager"},
}


def build(name: str) -> LoadedModel:
    """Make a model of 4 layers with 4 query heads and 2 KV heads, or of a single layer with 1 KV head."""
    family, _, single = name.partition(" ")
    return tiny_model(family, layers=1, num_key_value_heads=1) if single else tiny_model(family, layers=4)


@dataclass(frozen=True)
class PeerResult:
    """Result of kvpress per layer and KV head: scores of all rows, surviving rows in order, and their keys."""

    scores: torch.Tensor  # (layers, kv_heads, rows)
    rows: torch.Tensor  # (layers, kv_heads, n)
    keys: torch.Tensor  # (layers, kv_heads, n, head_dim)

    @property
    def sets(self) -> list[list[int]]:
        return self.rows.flatten(0, 1).tolist()


@dataclass(frozen=True)
class Pair:
    """One model: this project's cache after the prompt, and kvpress's results by case name."""

    engine: Engine
    cache: PagedCache
    spans: QuerySpan  # with the instruction of an earlier turn
    peer: dict[str, PeerResult]

    def view(self, protected: int = 0) -> CacheView:
        """Return the view after the first turn of a session."""
        return QuerySpan().view(self.cache, ROWS - QUERY, protected=protected)

    @cached_property
    def later(self) -> CacheView:
        return self.spans.view(self.cache, ROWS - QUERY)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Save all models, run kvpress on them, and return their folders."""
    python = os.environ.get("KEEP_AGENT_PEERS")
    if not python:
        pytest.skip("needs kvpress in a separate environment: `make peers`, or KEEP_AGENT_PEERS=/path/to/its/python")
    root = tmp_path_factory.mktemp("peers")
    places = {name: root / name.replace(" ", "-") for name in DEEP + SINGLE}
    for name, folder in places.items():
        build(name).module.save_pretrained(folder)
        job = {"tokens": TOKENS, "cases": list(CASES.values())}
        (folder / "cases.json").write_text(json.dumps(job), encoding="utf-8")
    command = [Path(python).absolute(), "-I", WORKER, *places.values()]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return places


@pytest.fixture(scope="module", params=DEEP + SINGLE)
def pair(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Iterator[Pair]:
    results = json.loads((folders[request.param] / "results.json").read_text(encoding="utf-8"))
    peer = {
        name: PeerResult(*(torch.tensor(result[part]) for part in ("scores", "rows", "keys")))
        for name, result in zip(CASES, results, strict=True)
    }
    with TransformersEngine(build(request.param)) as engine:
        cache, spans = PagedCacheProvider(engine, Turns()).cache(AttentionObserver(WINDOW, mass=True)), QuerySpan()
        engine.extend(cache, TOKENS[:FIRST])
        spans.view(cache, INSTRUCTION, instruction=LENGTH)
        engine.extend(cache, TOKENS[FIRST:])
        yield Pair(engine, cache, spans, peer)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=0)


def rows_of(mask: torch.Tensor) -> list[int]:
    return mask.nonzero()[:, 0].tolist()


def best(view: CacheView, budget: int, scores: torch.Tensor) -> list[int]:
    return rows_of(keep_best(view, budget, lambda: scores[view.history]))


def grouped(stage: SnapKV, view: CacheView, pair: Pair) -> torch.Tensor:
    """Average the window's attention over a KV head's query heads: (layers, kv_heads, rows before the window)."""
    attention = torch.stack([stage.window_attention(view, layer) for layer in range(view.layers)])
    return attention.unflatten(1, (pair.engine.info.kv_heads, -1)).mean(2)


@pytest.mark.parametrize("case", STREAMS)
def test_streaming_keeps_the_same_rows(pair: Pair, case: tuple[int, int, int]) -> None:
    """Protected rows correspond to additional sinks; the forced query span is recent in any case."""
    budget, sinks, protected = case
    rows = rows_of(Streaming(budget, sinks).keep(pair.view(protected)))
    assert len(rows) == budget
    for peer_rows in pair.peer[f"streaming {case}"].sets:
        assert peer_rows == rows


def test_streaming_makes_room_for_an_old_instruction(pair: Pair) -> None:
    """An instruction, which kvpress does not have, survives in place of the least recent rows."""
    instruction = range(INSTRUCTION, INSTRUCTION + LENGTH)
    rows = rows_of(Streaming(30, 4).keep(pair.later))
    assert len(rows) == 30 and set(instruction) < set(rows)
    for peer_rows in pair.peer["streaming less"].sets:
        assert peer_rows == [row for row in rows if row not in instruction]


def test_streaming_rotates_keys_to_their_positions_in_the_cache(pair: Pair) -> None:
    """``survivors=move`` equals ``KeyRerotationPress``: keys agree to 1e-4 of the largest one, but not before it."""
    cache, peer = pair.cache.fork(), pair.peer["rerotated"]
    cache.drop(Streaming(30, 4).keep(pair.view()))
    assert peer.sets == [cache.positions.tolist()] * len(peer.sets)
    before = torch.stack([cache.keys(layer) for layer in range(pair.engine.info.layers)])
    compact(pair.engine.decoder, cache)
    keys = torch.stack([cache.keys(layer) for layer in range(pair.engine.info.layers)])
    limit = 1e-4 * keys.abs().max()
    assert (keys - peer.keys).abs().max() < limit < (keys - before).abs().max()


def test_snapkv_gives_the_same_scores(pair: Pair) -> None:
    stage, view = SnapKV(60, WINDOW, KERNEL, "mean"), pair.view()
    close(grouped(stage, view, pair), pair.peer["snapkv 60"].scores[..., :-WINDOW])


@pytest.mark.parametrize("budget", BUDGETS)
def test_snapkv_keeps_the_same_rows_per_layer_and_head(pair: Pair, budget: int) -> None:
    """Select rows by the attention of one KV head, as kvpress does; the window survives."""
    stage, view = SnapKV(budget, WINDOW, KERNEL, "mean"), pair.view()
    attention = torch.nn.functional.pad(grouped(stage, view, pair), (0, WINDOW), value=float("inf"))
    assert [best(view, budget, scores) for scores in attention.flatten(0, 1)] == pair.peer[f"snapkv {budget}"].sets


@pytest.mark.parametrize("budget", BUDGETS)
def test_snapkv_keeps_one_set_for_all_layers_and_heads(pair: Pair, budget: int) -> None:
    """The set follows from the sum of kvpress's scores; with one layer and KV head it is kvpress's set."""
    peer, view = pair.peer[f"snapkv {budget}"], pair.view()
    rows = rows_of(SnapKV(budget, WINDOW, KERNEL, "mean").keep(view))
    assert rows == best(view, budget, peer.scores.sum((0, 1)))
    if len(peer.sets) == 1:
        assert peer.sets == [rows]
    else:
        assert len({tuple(rows) for rows in peer.sets}) == len(peer.sets), "the heads must select different rows"


def test_snapkv_with_other_options_has_other_scores(pair: Pair) -> None:
    view, scores = pair.view(), pair.peer["snapkv 60"].scores[..., :-WINDOW]
    for stage in (SnapKV(60, WINDOW, KERNEL, "max"), SnapKV(60, WINDOW, KERNEL + 2, "mean")):
        with pytest.raises(AssertionError, match="not close"):
            close(grouped(stage, view, pair), scores)


def test_h2o_sums_the_attention_that_kvpress_averages(pair: Pair) -> None:
    """kvpress's scores times the number of queries are the attention mass; unscaled, other rows would survive."""
    peer, view, spec = pair.peer["observed"], pair.view(), pair.engine.info
    group, queries = spec.heads // spec.kv_heads, torch.arange(ROWS, 0, -1)
    mass = (peer.scores * queries * group).sum((0, 1))
    close(view.mass, mass)
    rows = rows_of(H2O(60, recent=0).keep(view))
    assert rows == best(view, 60, mass) != best(view, 60, peer.scores.sum((0, 1)))
