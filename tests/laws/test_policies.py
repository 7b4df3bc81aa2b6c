"""Law 6: a policy equals the dense reference of its paper, both in float64: the same rows and the same logits."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import pytest
import torch

from memory.engine.base import Engine, PrefillResult
from memory.loading.layer_balanced import LayerBalanced
from memory.loading.next_layer import NextLayer
from memory.prompt.layout import Layout
from memory.recompute.first_tokens import FirstTokens
from memory.recompute.multi_hop import MultiHop, Schedule
from memory.recompute.sparse_query import SparseQuery
from memory.recompute.value_deviation import ValueDeviation
from memory.stages import Recompute
from tests.laws.conftest import PRETRAINED, GetEngine
from tests.laws.prompts import Prompt, RecordingStage, Script
from tests.laws.prompts import relative as deviation
from tests.references.cacheblend import cacheblend_prefill
from tests.references.dense import Memory, Outcome, Reference
from tests.references.epic import epic_prefill
from tests.references.multi_hop import keep_prefill
from tests.references.sparsex import Options, sparsex_prefill

LENGTHS = (9, 4, 13, 7, 6, 11, 5, 8)


@dataclass(frozen=True)
class Case:
    """Case of a prompt: units without stored blocks, number of exact first units, length of the query."""

    new: tuple[int, ...] = ()
    exact: int = 0
    query: int = 6
    seed: int = 0

    @property
    def prompt(self) -> Prompt:
        return Prompt.random(LENGTHS, self.query, seed=self.seed)

    def layout(self, engine: Engine) -> Layout:
        blocks = self.prompt.blocks(engine)
        return self.prompt.layout([None if i in self.new else b for i, b in enumerate(blocks)], self.exact)

    def memory(self, module: torch.nn.Module) -> Memory:
        return Memory(Reference(module), self.prompt.units, self.prompt.query, self.new, self.exact)


PLAIN, MIXED, BARE = Case(), Case((2, 5), exact=1, seed=100), Case((3,), query=1, seed=200)
CASES = pytest.mark.parametrize("case", [PLAIN, MIXED, BARE], ids=["plain", "mixed", "bare"])
FAMILIES = pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])


def agree(engine: Engine, case: Case, stage: Recompute, expected: Outcome) -> PrefillResult:
    recorder = RecordingStage(stage)
    result = engine.prefill(case.layout(engine), recorder, LayerBalanced())
    assert [rows.tolist() for rows in recorder.active] == expected.active
    assert deviation(result.logits[0], expected.logits) < 1e-5
    return result


def layers_of(module: torch.nn.Module) -> int:
    return module.config.num_hidden_layers


def keep(module: torch.nn.Module, case: Case, stage: MultiHop) -> tuple[Outcome, list[int]]:
    competing = len(LENGTHS) - len(case.new) - case.exact
    counts = [max(1, round(share * competing)) for share in [1.0, *stage.schedule.ratios(layers_of(module))]]
    causal = stage.direction == "causal"
    peak = stage.importance == "max"
    return keep_prefill(case.memory(module), counts, stage.max_hops, causal, stage.relative, stage.query_weight, peak)


def epic(module: torch.nn.Module, case: Case, stage: FirstTokens) -> Outcome:
    return epic_prefill(case.memory(module), stage.k, stage.last_k)


def cacheblend(module: torch.nn.Module, case: Case, stage: ValueDeviation) -> Outcome:
    memory, gradual = case.memory(module), stage.selection == "gradual"
    layers = layers_of(module)
    shares = Schedule("linear", stage.ratio).ratios(layers) if gradual else [stage.ratio] * (layers - 1)
    counts = [max(1, round(share * len(memory.reused))) if share else 0 for share in [1.0, *shares]]
    return cacheblend_prefill(memory, counts, stage.deviation, gradual)


def sparsex(module: torch.nn.Module, case: Case, stage: SparseQuery) -> Outcome:
    memory = case.memory(module)
    dense, count = max(1, round(stage.boundary * layers_of(module))), round(stage.share * len(memory.reused))
    only = stage.over == "reused"
    options = Options(dense, count, stage.block, stage.overflow, stage.tail, stage.probe_tail, only)
    return sparsex_prefill(memory, options)


@FAMILIES
@pytest.mark.parametrize(("direction", "relative"), [("causal", True), ("causal", False), ("both", True)])
@pytest.mark.parametrize(
    ("average", "max_hops", "weight"), [(0.5, 4, 0), (0.25, 4, 0.5), (0.5, 4, 0.1), (0.5, 0, 0.5), (0.1, 1, 0.5)]
)
def test_law_6_multi_hop(
    family: str, direction: str, relative: bool, average: float, max_hops: int, weight: float, engine_of: GetEngine
) -> None:
    engine = engine_of(family, torch.float64)
    stage = MultiHop(Schedule("linear", average), max_hops, direction, relative, weight)
    for case in (PLAIN, MIXED):
        expected, hops = keep(engine.model.module, case, stage)
        result = agree(engine, case, stage, expected)
        assert [h.hops for h in result.trace.hops] == hops


@FAMILIES
@CASES
@pytest.mark.parametrize("max_hops", [0, 3])
def test_law_6_multi_hop_by_maximum(family: str, case: Case, max_hops: int, engine_of: GetEngine) -> None:
    engine, stage = engine_of(family, torch.float64), MultiHop(Schedule("step", 0.4), max_hops, importance="max")
    expected, hops = keep(engine.model.module, case, stage)
    assert [h.hops for h in agree(engine, case, stage, expected).trace.hops] == hops


@FAMILIES
@CASES
@pytest.mark.parametrize(("k", "last_k"), [(0, 0), (1, 0), (3, 2), (16, 0)])
def test_law_6_first_tokens(family: str, case: Case, k: int, last_k: int, engine_of: GetEngine) -> None:
    engine, stage = engine_of(family, torch.float64), FirstTokens(k, last_k)
    case = replace(case, exact=1)  # sessions mark a unit as exact if it was encoded after all rows before it
    agree(engine, case, stage, epic(engine.model.module, case, stage))


@FAMILIES
@CASES
@pytest.mark.parametrize("kind", ["v", "k", "kv"])
@pytest.mark.parametrize("selection", ["gradual", "single"])
def test_law_6_value_deviation(family: str, case: Case, kind: str, selection: str, engine_of: GetEngine) -> None:
    """Use shares that never select an unmarked first unit, whose deviation is only rounding."""
    engine = engine_of(family, torch.float64)
    for ratio in (0.15, 0.4):
        stage = ValueDeviation(ratio, kind, selection)
        agree(engine, case, stage, cacheblend(engine.model.module, case, stage))


@FAMILIES
@CASES
@pytest.mark.parametrize("stage", [
    SparseQuery(block=2),
    SparseQuery(boundary=0.0, share=0.4, overflow=0),
    SparseQuery(boundary=0.45, share=0.3, block=1, over="reused"),  # 2.7 of 6 layers: 3
    SparseQuery(share=0.2, block=2, overflow=2, tail=9, probe_tail=True),
    SparseQuery(share=0.0, block=1, tail=3),
], ids=["default", "first_layer", "reused", "probe_tail", "no_keys"])  # fmt: skip
def test_law_6_sparse_query(family: str, case: Case, stage: SparseQuery, engine_of: GetEngine) -> None:
    engine = engine_of(family, torch.float64)
    agree(engine, case, stage, sparsex(engine.model.module, case, stage))


def test_the_cases_distinguish_all_options(engine_of: GetEngine) -> None:
    """Without this, the laws would hold for stages that ignore an option."""
    module = engine_of("qwen2", torch.float64).model.module
    kinds = [cacheblend(module, PLAIN, ValueDeviation(0.3, kind)) for kind in ("v", "k", "kv")]
    once = cacheblend(module, PLAIN, ValueDeviation(0.3, selection="single"))
    votes = [sparsex(module, BARE, SparseQuery(0.2, 0.3, block=1, tail=9, probe_tail=p)) for p in (False, True)]
    early, late = (sparsex(module, MIXED, SparseQuery(boundary=b, block=1, share=0.3)) for b in (0.0, 0.5))
    alone = sparsex(module, MIXED, SparseQuery(boundary=0.5, block=1, share=0.3, over="reused"))
    active = [str(outcome.active) for outcome in (*kinds, once, *votes, early, late, alone)]
    assert len(set(active)) == len(active)
    linear = Schedule("linear", 0.5)
    mean, peak = ([keep(module, case, MultiHop(linear, 0, importance=kind))[0].active for case in (PLAIN, MIXED, BARE)]
                  for kind in ("mean", "max"))  # fmt: skip
    assert mean != peak


@pytest.mark.parametrize("policy", ["keep", "keep_max", "epic", "cacheblend", "sparsex"])
def test_law_6_on_pretrained_weights(policy: str, engine_of: GetEngine) -> None:
    engine = engine_of(PRETRAINED, torch.float64)
    stage, reference = {
        "keep": (linear := MultiHop(Schedule("linear", 0.4)), lambda: keep(module, MIXED, linear)[0]),
        "keep_max": (peak := MultiHop(Schedule("step", 0.4), importance="max"), lambda: keep(module, MIXED, peak)[0]),
        "epic": (first := FirstTokens(3), lambda: epic(module, MIXED, first)),
        "cacheblend": (values := ValueDeviation(0.4), lambda: cacheblend(module, MIXED, values)),
        "sparsex": (sparse := SparseQuery(block=2), lambda: sparsex(module, MIXED, sparse)),
    }[policy]
    module = engine.model.module
    agree(engine, MIXED, stage, reference())


@FAMILIES
@pytest.mark.parametrize("policy", ["keep", "epic", "cacheblend", "sparsex"])
def test_law_6_in_bfloat16(family: str, policy: str, engine_of: GetEngine) -> None:
    """Force the selection of the float64 reference with the same weights, because rounding can change it."""
    engine = engine_of(family, torch.bfloat16)
    exact = copy.deepcopy(engine.model.module).double()
    expected = {
        "keep": lambda: keep(exact, MIXED, MultiHop(Schedule("linear", 0.5)))[0],
        "epic": lambda: epic(exact, MIXED, FirstTokens(3)),
        "cacheblend": lambda: cacheblend(exact, MIXED, ValueDeviation(0.4)),
        "sparsex": lambda: sparsex(exact, MIXED, SparseQuery(block=2)),
    }[policy]()
    forced = Script([torch.tensor(rows) for rows in expected.active])
    result = engine.prefill(MIXED.layout(engine), forced, NextLayer())
    assert deviation(result.logits[0].double(), expected.logits) < 5e-2
