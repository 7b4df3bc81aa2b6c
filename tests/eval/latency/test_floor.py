"""Floor of a step (least operations and time): torch counts as many operations as the floor, or more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from eval.latency import machine
from eval.latency.cells import FixedLengthFormat
from eval.latency.contenders import PlannerContender
from eval.latency.floor import StepWork, plain_forward_work
from eval.latency.floor import _encoding_flops as encoding_work
from eval.latency.floor import _pass_flops as pass_work
from eval.latency.machine import RateMeter, Rates
from eval.latency.scripts import Recordings
from eval.latency.settings import Composer
from eval.latency.workloads import Workload, make_workload
from eval.loading.costs import Shape
from keep_agent.config.planner_factory import make_model, make_tokenizer
from memory.engine.base import Engine
from memory.engine.models.tiny_models import tiny_model
from memory.engine.transformers.engine import TransformersEngine
from memory.segments.sentence_encoder import HashedNgrams
from planners.prompts.formats import PlainFormat
from tests.eval.latency.conftest import latency_config
from tests.waiting import FakeTime

DENSE = ("qwen2", "qwen3", "llama", "mistral", "gemma3_text")
PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm)
ROWS = 20


def count_flops(engine: Engine, work: Callable[[], object], products: bool = True) -> int:
    """Count operations of ``work`` on the engine's worker; ``products``: only products with weights, no attention."""

    def run() -> int:
        with FlopCounterMode(display=False) as counter:
            work()
        counts = counter.get_flop_counts()["Global"]
        return sum(flops for op, flops in counts.items() if not products or op in PRODUCTS)

    return engine.run(run)


@pytest.mark.parametrize("family", DENSE)
def test_a_plain_forward_has_the_counted_operations_except_in_the_last_layer(family: str) -> None:
    with TransformersEngine(tiny_model(family)) as engine:
        shape, ids = Shape.of(engine), torch.arange(3, 3 + ROWS)[None]
        counted_flops = count_flops(engine, lambda: engine.plain(input_ids=ids, logits_to_keep=1))
        pairs = (shape.layers - 1) * ROWS * (ROWS + 1) // 2 + ROWS  # the prompt is shorter than every window
        omitted = (ROWS - 1) * shape.other_ops
        work = plain_forward_work(shape, ROWS)
        assert sum(work.flops) - shape.pair_ops * pairs + omitted == counted_flops
        assert sum(work.full_flops) - shape.pair_ops * shape.layers * ROWS * (ROWS + 1) // 2 == counted_flops


@pytest.mark.parametrize("family", DENSE)
def test_encoding_has_the_counted_operations(family: str) -> None:
    with TransformersEngine(tiny_model(family)) as engine:
        shape, units = Shape.of(engine), [[5, 6, 7], [8, 9, 10, 11]]
        counted_flops = count_flops(engine, lambda: engine.encode([(None, unit) for unit in units]))
        flops = sum(encoding_work(shape, torch.tensor([3, 4]).numpy(), 0))
        pairs = (shape.layers - 1) * (3 * 4 // 2 + 4 * 5 // 2)
        assert flops - shape.pair_ops * pairs == counted_flops


def test_the_last_layer_counts_the_last_row_in_any_order_of_the_active_rows() -> None:
    with TransformersEngine(tiny_model("qwen2")) as engine:
        shape = Shape.of(engine)
    orders = [torch.tensor(rows).numpy() for rows in ([3, 19, 5], [3, 5, 19])]
    first, second = (pass_work(shape, [rows] * shape.layers, compares_values=False)[-1] for rows in orders)
    assert first == second


def test_a_mixture_counts_its_active_experts() -> None:
    with TransformersEngine(tiny_model("qwen3_moe")) as engine:
        shape = Shape.of(engine)
    assert (shape.width, shape.router) == (2 * 64, 4)


@pytest.mark.parametrize(
    "planner",
    ["full_recompute", "cacheblend", "keep", "epic", "sparsex", "full_reuse", "prefix_cache", "full_cache", "memart"],
)
def test_no_step_has_fewer_operations_than_its_floor(planner: str, tiny_model: Path, tmp_path: Path) -> None:
    """The floor is also at least 30 % of the counted operations."""
    config = latency_config(f"latency.planners={planner}", f"latency.models={tiny_model}", "latency.segments=8")
    composer = Composer(config, ["prompt.encoder=hashed"], tmp_path)
    setting = composer.setting
    setting.model.dtype, setting.model.device, setting.prompt.budget = "float32", "cpu", 8
    with TransformersEngine(make_model(setting.model)) as engine:
        prompt_format = FixedLengthFormat(PlainFormat(make_tokenizer(setting.model, engine.model)), 12)
        contender = PlannerContender(planner, setting, engine, prompt_format, HashedNgrams())
        plan = Workload(segments=8, store=8, churn=2, steps=4, candidates=0, age=11)
        (script,) = make_workload(plan, Recordings(config))
        contender.begin(script)
        for step in script.steps:
            timed = []
            counted_flops = count_flops(
                engine, lambda step=step, timed=timed: timed.append(contender.step(step)), products=False
            )
            work = timed[0].work
            assert 0.3 * counted_flops < sum(work.flops) <= counted_flops
            compares = planner == "cacheblend"  # also computes the next layer's values, to compare them
            assert compares or all(least <= full for least, full in zip(work.flops, work.full_flops, strict=True))


def test_each_piece_takes_the_larger_of_its_times_and_loading_overlaps() -> None:
    rates = Rates(flops=1e9, bandwidth=1e9)
    work = StepWork((4_000_000, 1_000_000), (1_000_000, 2_000_000), full_flops=(5_000_000, 1_000_000))
    assert (work.floor_ms(rates), work.rows_ms(rates)) == pytest.approx((6.0, 7.0))
    # without a link, loaded bytes are read and written in memory; a fast link is hidden, a slow link sets the time
    for link, ms in {None: 8.0, 1e9: 6.0, 1e8: 40.0}.items():
        assert replace(work, loaded=4_000_000).floor_ms(replace(rates, link=link)) == pytest.approx(ms)


def test_rates_are_the_median_of_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "time", SimpleNamespace(perf_counter=FakeTime(tick=0.5)))  # each measurement: 0.5 s
    samples = [Rates(1.0, 5.0), Rates(3.0, 1.0), Rates(2.0, 9.0)]
    assert Rates.median(samples) == Rates(2.0, 5.0)
    sample = RateMeter(torch.device("cpu"), torch.float32).sample()
    product, bytes_copied = 2 * machine.ROWS["cpu"] * (2 * machine.ROWS["cpu"]) ** 2, 2 * machine.COPY_BYTES["cpu"]
    assert sample == Rates(product / 0.5, bytes_copied / 0.5, None)
    assert RateMeter(torch.device("cpu"), torch.float32, link_gigabytes=0.5).sample().link == 5e8, "a throttled link"
