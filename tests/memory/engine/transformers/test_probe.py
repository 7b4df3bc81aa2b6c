"""Answers of the probe against transformers' own eager attention weights, and against stored blocks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from keep_agent.errors import ConfigError
from memory.engine.attention import kernels as attention
from memory.engine.base import Engine
from memory.engine.transformers import prefill as prefill_module
from memory.engine.transformers.probe import join_parts
from memory.loading.serial import Serial
from memory.prompt.layout import Layout
from memory.stages import Capabilities, Probe, Recompute
from tests.laws.prompts import Always, Prompt, eager_weights, relative, shrinking

PROMPT = Prompt.random(context=5)


class Asker:
    """Recompute stage that wraps ``stage`` and asks the probe a question after every layer."""

    def __init__(self, ask: Callable[[Probe], object], stage: Recompute, by_mass: bool = False) -> None:
        self.ask, self.stage, self.answers = ask, stage, []
        self.capabilities = Capabilities(exact=False, by_mass=by_mass)

    def first(self, layout: Layout, layers: int) -> torch.Tensor:
        return self.stage.first(layout, layers)

    def narrow(self, layer: int, active: torch.Tensor, probe: Probe) -> torch.Tensor:
        self.answers.append(self.ask(probe))
        return self.stage.narrow(layer, active, probe)


def run(
    engine: Engine, ask: Callable[[Probe], object], by_mass: bool = False, shrinks: bool = False
) -> tuple[list, Layout]:
    layout = PROMPT.layout(PROMPT.blocks(engine))
    stage = Asker(ask, shrinking(layout, engine.info.layers) if shrinks else Always(5), by_mass)
    engine.prefill(layout, stage, Serial(), PROMPT.context_block(engine))
    return stage.answers, layout


def mass(weights: torch.Tensor, rows: slice, layout: Layout) -> torch.Tensor:
    visible = weights[:, rows].mean((0, 1))
    return torch.stack([visible[s.start : s.stop].mean() for s in layout.segments])


def test_the_peak_is_the_largest_share_of_a_rows_attention_to_the_segments(any_engine: Engine) -> None:
    answers, layout = run(any_engine, lambda probe: probe.peak_from_query())
    for answer, weights in zip(answers, eager_weights(any_engine, PROMPT.ids.tolist())[:-1], strict=True):
        rows = weights[:, layout.query :]  # (heads, query rows, prompt rows)
        mass = torch.stack([rows[:, :, s.start : s.stop].sum(-1) for s in layout.segments], -1)
        assert relative(answer, (mass / mass.sum(-1, keepdim=True)).amax((0, 1))) < 1e-5


@pytest.mark.parametrize("keeps_weights", [True, False])
@pytest.mark.parametrize("by_mass", [True, False])
def test_mass_is_the_attention_of_the_plain_model(
    any_engine: Engine, keeps_weights: bool, by_mass: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not keeps_weights:
        monkeypatch.setattr(prefill_module, "KEPT_WEIGHTS", 0)
    segments = torch.tensor([2, 3])
    sources = torch.tensor([5, 30, 31, 70, 98, 110])  # in both blocks of query rows, and further apart than a window
    every = torch.arange(5, 111)

    def ask(probe: Probe) -> tuple[torch.Tensor, ...]:
        masses = probe.mass_from_query(), *probe.mass_between(segments)
        return *masses, probe.mass_on_rows(sources), probe.mass_on_rows(every)

    answers, layout = run(any_engine, ask, by_mass)
    rows = [slice(layout.query, None), *(slice(layout.segments[i].start, layout.segments[i].stop) for i in segments)]
    for answer, weights in zip(answers, eager_weights(any_engine, PROMPT.ids.tolist())[:-1], strict=True):
        expected = (
            *(mass(weights, part, layout) for part in rows),
            *(weights[:, x].sum((0, 1)) for x in (sources, every)),
        )
        for item, peer in zip(answer, expected, strict=True):
            assert item.shape == peer.shape and relative(item, peer) < 1e-5


def test_mass_on_scattered_rows_does_not_depend_on_kept_weights(
    any_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(probe: Probe) -> torch.Tensor:
        return probe.mass_on_rows(probe.active[::3].contiguous())

    with_weights, _ = run(any_engine, ask, shrinks=True)
    monkeypatch.setattr(prefill_module, "KEPT_WEIGHTS", 0)
    without, _ = run(any_engine, ask, shrinks=True)
    assert len(without) == any_engine.info.layers - 1
    assert all(relative(*pair) < 1e-5 for pair in zip(with_weights, without, strict=True))


@pytest.mark.parametrize("causal", [True, False])
def test_mass_of_no_segments_and_of_segments_in_any_order(engine: Engine, causal: bool) -> None:
    none, some = torch.zeros(0, dtype=torch.long), torch.tensor([3, 0, 3])
    answers, layout = run(engine, lambda p: [p.mass_between(ids, causal) for ids in (none, some, *some.split(1))])
    for empty, lines, *single in answers:
        assert empty.shape == (0, len(layout.segments))
        torch.testing.assert_close(lines, torch.cat(single))


def test_fresh_kv_is_what_the_layers_compute(any_engine: Engine) -> None:
    run_raw = any_engine.prefill(PROMPT.layout([None] * 4), Always(), Serial(), PROMPT.context_block(any_engine), True)
    truth = any_engine.harvest(run_raw.cache, range(PROMPT.ids.numel()))
    rows = torch.tensor([5, 6, 30, 98])
    answers, _ = run(any_engine, lambda p: (p.layer, p.fresh_kv(p.layer, rows), p.fresh_kv(p.layer + 1, rows)))
    for layer, *pairs in answers:
        for i, (k, v) in enumerate(pairs, layer):
            assert relative(k, truth.k[i][:, rows]) < 1e-5 and relative(v, truth.v[i][:, rows]) < 1e-5


def test_blocks_of_several_devices_are_joined_on_the_models_device() -> None:
    parts = [torch.zeros(2, 3, 4), torch.zeros(2, 5, 4, device="meta")]
    assert join_parts(parts, torch.device("meta")).shape == (2, 8, 4)
    assert torch.equal(join_parts(parts[:1], torch.device("meta")), parts[0])


def test_cached_kv_is_what_the_blocks_hold(engine: Engine) -> None:
    rows = torch.tensor([98, 5, 6, 30])
    answers, layout = run(engine, lambda p: p.cached_kv(3, rows))
    for k, v in answers:
        for i, row in enumerate(rows.tolist()):
            place = next(p for p in layout.placements if p.start <= row < p.stop)
            assert torch.equal(k[:, i], place.block.k[3][:, row - place.start])
            assert torch.equal(v[:, i], place.block.v[3][:, row - place.start])


@pytest.mark.parametrize("many", [True, False])
def test_rows_dropped_by_mass_never_attend(any_engine: Engine, many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A choice by the weights of many rows needs the attention of all rows before it."""
    layout, context = PROMPT.layout(PROMPT.blocks(any_engine)), PROMPT.context_block(any_engine)
    rows, logits, attended, script = 64 if many else 4, [], [], shrinking(layout, any_engine.info.layers)
    whole = attention.grouped_attention

    def counting(query: torch.Tensor, *rest: object) -> torch.Tensor:
        attended.append(query.shape[2])
        return whole(query, *rest)

    for by_mass in (False, True):
        stage = Asker(lambda p: p.mass_on_rows(p.active[-rows:]), script, by_mass)
        if by_mass:
            monkeypatch.setattr(attention, "grouped_attention", counting)
        logits.append(any_engine.prefill(layout, stage, Serial(), context).logits)
    assert relative(*logits) < 1e-5
    active = [item.numel() for item in script.rows]
    assert attended == [*(active[:-1] if many else active[1:]), 1]


def test_a_stage_by_mass_cannot_ask_for_the_next_layer(engine: Engine) -> None:
    with pytest.raises(ConfigError, match="reads KV of a later layer"):
        run(engine, lambda p: p.fresh_kv(p.layer + 1, torch.tensor([9])), by_mass=True)


def test_questions_without_an_answer_are_refused(engine: Engine) -> None:
    row = torch.tensor([2])
    for ask, match in (
        (lambda p: p.fresh_kv(p.layer + 2, torch.tensor([9])), "only layers"),
        (lambda p: p.fresh_kv(p.layer, row), "not active"),
        (lambda p: p.mass_on_rows(row), "not active"),
        (lambda p: p.cached_kv(0, row), "no block"),
        (lambda p: p.cached_kv(0, row[:0]), "no block"),
    ):
        with pytest.raises(ConfigError, match=match):
            run(engine, ask)
