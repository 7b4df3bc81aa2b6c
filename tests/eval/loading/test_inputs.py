"""Inputs of a simulation: rows by method, roofline times, devices and links, files of measured times."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from eval.latency import machine
from eval.loading.costs import Roofline, Shape
from eval.loading.machines import DEVICES, LINKS, Device, device_named, link_named, measure_cpu
from eval.loading.prompt import SyntheticPrompt, schedule_of
from eval.loading.timeline import COMPUTE, IMPORTANCE, LINK, Timeline
from eval.loading.workload import AFTER, BEFORE, BESIDE, METHODS, read_times
from keep_agent.errors import ConfigError, DataError
from memory.engine.models.model_shapes import SHAPES
from memory.engine.trace import ComputeInterval, LoadInterval, PrefillTrace
from memory.recompute.multi_hop import Schedule
from tests.waiting import FakeTime

PROMPT = SyntheticPrompt(10, 4, 3)
FALL = Schedule("linear", 0.4)
SHAPE = Shape(layers=3, hidden=8, heads=4, kv_heads=2, head_dim=2, width=16)
SLOW = Device("slow", 1.0, 1e30, "shared")  # one FLOP per second: times are FLOPs
NARROW = Device("narrow", 1e30, 1.0, "shared")  # one byte per second: times are bytes


def counts(method: str, layers: int = 6) -> list[int]:
    return [rows.numel() for rows in PROMPT.active(method, layers, FALL)]


def test_the_schedule_counts_segments_for_keep_and_rows_for_cacheblend() -> None:
    assert counts("keep") == [3 + 4 * count for count in FALL.counts(6, 10)]
    assert counts("cacheblend") == [3 + count for count in FALL.counts(6, 40)]
    assert counts("epic") == [43] * 6
    assert counts("full_reuse") == [3] * 6


@pytest.mark.parametrize("method", METHODS)
def test_active_rows_shrink_and_keep_the_query(method: str) -> None:
    active = PROMPT.active(method, 6, FALL)
    assert all(set(b.tolist()) <= set(a.tolist()) for a, b in pairwise(active))
    assert all(rows.tolist() == sorted(set(rows.tolist())) and rows[-3:].tolist() == [40, 41, 42] for rows in active)
    repeated, reseeded = PROMPT.active(method, 6, FALL), PROMPT.active(method, 6, FALL, seed=1)
    assert all(map(torch.equal, active, repeated))
    assert all(map(torch.equal, active, reseeded)) == (method in ("epic", "full_reuse"))


def test_epic_computes_the_first_rows_of_each_segment() -> None:
    assert SyntheticPrompt(2, 20, 1).active("epic", 2, FALL)[0].tolist() == [*range(16), *range(20, 36), 40]


def test_default_schedules_are_those_of_the_stages() -> None:
    assert schedule_of("keep") == Schedule()
    assert schedule_of("cacheblend") == Schedule("linear", 0.15)


def test_a_unit_holds_several_segments() -> None:
    layout = SyntheticPrompt(5, 2, 1, segments_per_block=2).layout()
    assert [(place.start, place.stop) for place in layout.placements] == [(0, 4), (4, 8), (8, 10)]
    assert layout.reused.tolist() == [True] * 10 + [False]
    assert [span.stop for span in layout.segments] == [2, 4, 6, 8, 10]


@pytest.mark.parametrize("sizes", [(0, 4, 1), (4, 0, 1), (4, 4, 0)])
def test_an_empty_prompt_is_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match="=0 makes no prompt"):
        SyntheticPrompt(*sizes)


def test_times_are_the_counted_flops() -> None:
    """Active rows: 0, 1, 2, then twice 1, 2. FLOPs of a row: 2 x 2 x 8 x 8 for q and o, 2 x 2 x 8 x 4 for k and v."""
    active = torch.tensor([0, 1, 2]), torch.tensor([1, 2]), torch.tensor([1, 2])
    times = Roofline(SHAPE, SLOW, attainable=1.0).times(active, 3, BEFORE)
    pair = 4 * 8
    assert times.attention == (3 * 384 + 6 * pair, 2 * 384 + 5 * pair, 2 * 128 + 256 + 3 * pair)
    assert times.importance == (6 * pair / 2, 0, 0)
    assert times.mlp == (2 * 768, 2 * 768, 768)
    assert Roofline(SHAPE, SLOW, attainable=1.0).times(active, 3, BESIDE).mlp == (3 * 768, 2 * 768, 768)
    blend = Roofline(SHAPE, SLOW, attainable=1.0).times(active, 3, AFTER)
    assert (blend.mlp, blend.importance) == ((3 * 768, 2 * 768, 768), (3 * 2 * 8 * 4, 0, 0))


def test_few_rows_take_the_time_of_reading_the_weights() -> None:
    active = (torch.tensor([2]),) * 2
    for bits, share in ((16, 2.0), (4, 0.5)):
        times = Roofline(SHAPE.first_layers(2), NARROW, 1.0, bits).times(active, 3, BEFORE)
        assert times.mlp == (3 * 8 * 16 * share + 32,) * 2
    assert Roofline(SHAPE, NARROW, 0.5).times(active, 3, BEFORE).mlp == (2 * (3 * 8 * 16 * 2 + 32),) * 2


def test_shapes_are_read_by_name_or_from_a_file(tmp_path: Path) -> None:
    assert Shape.from_name("qwen2.5-14b") == Shape(48, 5120, 40, 8, 128, 13824)
    assert Shape.from_name("qwen2.5-14b").row_bytes == 4096
    file = tmp_path / "config.json"
    file.write_text(json.dumps(SHAPES["qwen2.5-14b"] | {"head_dim": 64}))
    assert Shape.from_name(str(file)).head_dim == 64
    file.write_text("{}")
    with pytest.raises(ConfigError, match="not the config.json of a dense decoder"):
        Shape.from_name(str(file))
    with pytest.raises(ConfigError, match="neither a file nor one of planner-tiny"):
        Shape.from_name("gpt-9")
    with pytest.raises(ConfigError, match="use 2 to 3"):
        SHAPE.first_layers(4)


def test_devices_and_links_are_found_by_name() -> None:
    assert all(device.link in LINKS and device_named(name) is device for name, device in DEVICES.items())
    assert link_named("2.5").bandwidth == 2.5e9
    assert link_named("shared").shared and not link_named("pcie4").shared
    for make in (lambda: device_named("abacus"), lambda: link_named("string"), lambda: link_named("0")):
        with pytest.raises(ConfigError):
            make()


def test_this_cpu_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ROWS", {"cpu": 64})
    monkeypatch.setattr(machine, "COPY_BYTES", {"cpu": 1 << 16})
    monkeypatch.setattr(machine, "time", SimpleNamespace(perf_counter=FakeTime(tick=0.5)))  # each measurement: 0.5 s
    cpu = measure_cpu(samples=3)
    assert (cpu.flops, cpu.memory) == (8 * 64**3 / 0.5, 2 * (1 << 16) / 0.5) and LINKS[cpu.link].shared


@pytest.mark.parametrize("bad", [{"attainable": 0.0}, {"attainable": 1.5}, {"weight_bits": 5}])
def test_an_invalid_roofline_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(bad.values())):g}"):
        Roofline(SHAPE, SLOW, **bad)


def test_measured_times_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "times.json"
    content = {"attention": [1, 2], "importance": [0.5, 0], "mlp": [3, 4], "active": [[0, 1], [1]], "row_bytes": 8}
    file.write_text(json.dumps(content))
    times = read_times(file)
    assert (times.times.mlp, times.row_bytes) == ((3, 4), 8)
    assert [rows.tolist() for rows in times.active or ()] == [[0, 1], [1]]
    file.write_text("{")
    with pytest.raises(DataError, match=r"times\.json is not JSON"):
        read_times(file)
    for text in ("[]", json.dumps(content | {"head": 1}), json.dumps(content | {"mlp": [3]})):
        file.write_text(text)
        with pytest.raises(DataError, match="holds no times per layer"):
            read_times(file)
    with pytest.raises(DataError, match="does not exist"):
        read_times(tmp_path / "none.json")


def test_a_trace_becomes_a_timeline() -> None:
    """A selection of rows that waited for the MLP starts at the MLP's end."""
    trace = PrefillTrace(4)
    trace.loads = [LoadInterval(1, 2, 13.0, 15.0, 64, 3)]
    spans = (0, 10, 11, "attention"), (0, 11, 13, "mlp"), (0, 11, 13.5, "importance"), (1, 15, 16, "attention")
    trace.computes = [ComputeInterval(*span) for span in spans]
    line = Timeline.of_trace(trace)
    assert sorted((e.lane, e.kind, e.start, e.end) for e in line.events) == [
        (COMPUTE, "attention", 0, 1), (COMPUTE, "attention", 5, 6), (COMPUTE, "importance", 3, 3.5),
        (COMPUTE, "mlp", 1, 3), (LINK, "load", 3, 5),
    ]  # fmt: skip
    assert (line.makespan, line.nbytes, line.idle(LINK), line.idle(COMPUTE)) == (6, 64, 4, 1.5)
    assert [event.kind for event in Timeline.of_trace(trace, separate_worker=True).on(IMPORTANCE)] == ["importance"]
