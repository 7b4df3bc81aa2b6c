"""Law 7: the time and the transport of slices never change a result."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from keep_agent.errors import CorruptError
from memory.engine.models.tiny_models import FAMILIES
from memory.engine.trace import PrefillTrace
from memory.engine.transfer.executor import KVTransfer
from memory.engine.transfer.link import Throttle
from memory.engine.transformers.engine import TransformersEngine
from memory.loading.layer_balanced import LayerBalanced
from memory.loading.next_layer import NextLayer
from memory.loading.serial import Serial
from memory.recompute.multi_hop import MultiHop, Schedule
from memory.recompute.none import Nothing
from memory.stages import Loading, Recompute
from tests.laws.conftest import DEVICE, GetEngine
from tests.laws.prompts import SELECTIVE, Prompt, relative
from tests.waiting import until

TRANSPORTS = ("inline", "thread", "stream") if DEVICE == "cuda" else ("inline", "thread")
CYCLES = 4_000_000  # about two milliseconds of a GPU
Feed = Callable[[int, torch.Tensor], torch.Tensor]
STAGES: dict[str, type] = {"serial": Serial, "next_layer": NextLayer, "layer_balanced": LayerBalanced}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("recompute", SELECTIVE.values(), ids=SELECTIVE)
def test_law_7_identical_logits(family: str, recompute: Recompute, engine_of: GetEngine) -> None:
    prompt = Prompt.random(context=5)
    logits: dict[tuple[str, str], torch.Tensor] = {}
    for transport in TRANSPORTS:
        engine = engine_of(family, torch.float32, transport)
        layout, context = prompt.layout(prompt.blocks(engine)), prompt.context_block(engine)
        for name, stage in STAGES.items():
            loading: Loading = stage()
            result = engine.prefill(layout, recompute, loading, context)
            logits[transport, name] = result.logits
            assert result.trace.loaded_bytes > 0
    first = logits["inline", "serial"]
    assert all(torch.equal(values, first) for values in logits.values()), sorted(logits)


def test_the_trace_records_intervals_of_loads_and_computations(engine_of: GetEngine) -> None:
    engine, prompt = engine_of("qwen2", torch.float32, "thread"), Prompt.random()
    layout = prompt.layout(prompt.blocks(engine))
    trace = engine.prefill(layout, Nothing(), NextLayer()).trace
    assert [(c.layer, c.kind) for c in trace.computes] == [
        (layer, kind)
        for layer in range(6)
        for kind in ("attention", "importance", "mlp")
        if (layer, kind) != (5, "importance")
    ]
    for load in trace.loads:
        assert load.end >= load.start
        attention = next(c for c in trace.computes if c.layer == load.first and c.kind == "attention")
        assert load.end <= attention.start, "a layer must wait for its slices"
        assert load.runs == len(layout.placements)
    memory = layout.query * engine.info.bytes_per_token
    assert trace.loaded_bytes == memory
    assert set(trace.timings) == {"load", "prefill"} and all(value >= 0 for value in trace.timings.values())


def _late(feed: Feed) -> Feed:
    """Delay an MLP on a GPU, so that code that reads its output without synchronisation fails."""

    def feed_late(layer: int, mixed: torch.Tensor) -> torch.Tensor:
        if mixed.is_cuda:
            torch.cuda._sleep(CYCLES)
        return feed(layer, mixed)

    return feed_late


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("recompute", SELECTIVE.values(), ids=SELECTIVE)
def test_law_7_parallel_mlp(
    family: str, recompute: Recompute, engine_of: GetEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropped rows pass through one more MLP, whose output must not be used.

    Rounding must not affect a selection: the first unit is marked exact, because the deviation of its rows is only
    rounding, and dense families run in float64, which experts do not support.
    """
    prompt, logits = Prompt.random(context=5, seed=100), []
    dtype = torch.float32 if family in ("qwen3_moe", "gpt_oss") else torch.float64
    for importance in ("before", "beside"):
        engine = engine_of(family, dtype, TRANSPORTS[-1], importance)
        monkeypatch.setattr(engine.decoder, "feed", _late(engine.decoder.feed))
        layout, context = prompt.layout(prompt.blocks(engine), exact=1), prompt.context_block(engine)
        logits.append(engine.prefill(layout, recompute, LayerBalanced(), context).logits)
    assert relative(*logits) < 1e-5


def test_the_link_transfers_urgent_slices_first(engine_of: GetEngine) -> None:
    """Slices of rows that are dropped late are transferred before slices that are needed at later layers.

    The test repeats the prefill until its timing allows this: on a busy machine all slices may be transferred before
    any row is dropped, or the link may start a job just before it learns of a drop.
    """
    model, prompt = engine_of("qwen2", torch.float32).model, Prompt.random()
    hooks = [layer.mlp.register_forward_hook(lambda *_: time.sleep(3e-3)) for layer in model.decoder.layers]
    with TransformersEngine(model, "thread", Throttle(1.0, microseconds=1000)) as engine:
        layout = prompt.layout(prompt.blocks(engine))
        recompute = MultiHop(Schedule("linear", 0.5))
        until(lambda: _urgent_load_went_first(engine.prefill(layout, recompute, LayerBalanced()).trace))
    for hook in hooks:
        hook.remove()


def _urgent_load_went_first(trace: PrefillTrace) -> bool:
    attention = {c.layer: c for c in trace.computes if c.kind == "attention"}
    dropped = {c.layer + 1: c.end for c in trace.computes if c.kind == "importance"}
    late = 0  # loads that started although a more urgent one was known
    for load in trace.loads:
        assert load.end <= attention[load.first].start
        waiting = [later for later in trace.loads if later.first < load.first and later.start > load.start]
        late += any(dropped[later.first] < load.start for later in waiting)
    order = [load.first for load in sorted(trace.loads, key=lambda load: load.start)]
    return order != sorted(order) and not late


def test_a_failed_transfer_ends_the_prefill(engine_of: GetEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, prompt = engine_of("qwen2", torch.float32, "thread"), Prompt.random()
    layout = prompt.layout(prompt.blocks(engine))

    def fail(*_: object) -> int:
        raise CorruptError("a page is damaged")

    with monkeypatch.context() as patch:
        patch.setattr(KVTransfer, "move", fail)
        with pytest.raises(CorruptError, match="a page is damaged"):
            engine.prefill(layout, Nothing(), LayerBalanced())
    logits = [engine.prefill(layout, Nothing(), loading).logits for loading in (LayerBalanced(), Serial())]
    assert relative(*logits) == 0
