"""What the probe says against transformers' own eager attention weights, and against stored blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import pytest
import torch

from keep_agent.errors import ConfigError
from memory.engine import prefill as prefill_module
from memory.engine.engine import Engine
from memory.loading.serial import Serial
from memory.stages import Capabilities, Layout, Probe
from tests.laws.prompts import Always, Prompt, relative

PROMPT = Prompt.random(context=5)


class Asker(Always):
    """Runs a question after every layer."""

    capabilities: ClassVar[Capabilities] = Capabilities(exact=False)

    def __init__(self, ask: Callable[[Probe], object], skip: int = 0) -> None:
        super().__init__(skip)
        self.ask, self.answers = ask, []

    def narrow(self, layer: int, active: torch.Tensor, probe: Probe) -> torch.Tensor:
        self.answers.append(self.ask(probe))
        return active


def run(engine: Engine, ask: Callable[[Probe], object], skip: int = 5) -> tuple[list, Layout]:
    stage, layout = Asker(ask, skip), PROMPT.layout(PROMPT.blocks(engine))
    engine.prefill(layout, stage, Serial(), PROMPT.context_block(engine))
    return stage.answers, layout


def eager_weights(engine: Engine) -> list[torch.Tensor]:
    """(heads, rows, keys) per layer from transformers."""
    twin = engine.plain
    before = twin.config._attn_implementation
    twin.set_attn_implementation("eager")
    out = twin(PROMPT.ids[None], output_attentions=True, use_cache=False)
    twin.set_attn_implementation(before)
    return [w[0] for w in out.attentions]


def mass(weights: torch.Tensor, rows: slice, layout: Layout) -> torch.Tensor:
    seen = weights[:, rows].mean((0, 1))
    return torch.stack([seen[s.start : s.stop].mean() for s in layout.segments])


@pytest.mark.parametrize("kept", [True, False])
def test_mass_is_the_attention_of_the_plain_model(
    any_engine: Engine, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kept:
        monkeypatch.setattr(prefill_module, "KEPT_WEIGHTS", 0)
    chosen = torch.tensor([0, 2])
    answers, layout = run(
        any_engine,
        lambda p: (p.mass_from_query(), p.mass_from_segments(chosen), p.mass_between(torch.tensor([2, 3]))),
    )
    for (query, segments, between), weights in zip(answers, eager_weights(any_engine)[:-1], strict=True):
        assert relative(query, mass(weights, slice(layout.query, None), layout)) < 1e-5
        rows = torch.cat([torch.arange(layout.segments[i].start, layout.segments[i].stop) for i in (0, 2)])
        expected = weights[:, rows].mean((0, 1))
        assert relative(segments, torch.stack([expected[s.start : s.stop].mean() for s in layout.segments])) < 1e-5
        for line, i in zip(between, (2, 3), strict=True):
            assert (
                relative(line, mass(weights, slice(layout.segments[i].start, layout.segments[i].stop), layout)) < 1e-5
            )


@pytest.mark.parametrize("causal", [True, False])
def test_mass_of_no_segments_and_of_lines_in_any_order(engine: Engine, causal: bool) -> None:
    none, some = torch.zeros(0, dtype=torch.long), torch.tensor([3, 0, 3])
    answers, layout = run(
        engine,
        lambda p: (
            p.mass_from_segments(none, causal),
            p.mass_between(none, causal),
            p.mass_between(some, causal),
            [p.mass_from_segments(i[None], causal) for i in some],
        ),
    )
    for nothing, empty, lines, single in answers:
        assert nothing.shape == (len(layout.segments),) and not nothing.any() and len(empty) == 0
        torch.testing.assert_close(lines, torch.stack(single))


def test_mass_without_causality_reaches_later_segments(engine: Engine) -> None:
    first = torch.tensor([0])
    answers, _ = run(engine, lambda p: (p.mass_from_segments(first), p.mass_from_segments(first, causal=False)))
    for causal, both in answers:
        assert causal[1:].abs().max() == 0 and bool((both[1:] > 0).all())


def test_fresh_kv_is_what_the_layers_compute(any_engine: Engine) -> None:
    run_raw = any_engine.prefill(PROMPT.layout([None] * 4), Always(), Serial(), PROMPT.context_block(any_engine), True)
    truth = any_engine.harvest(run_raw.cache, range(PROMPT.ids.numel()))
    rows = torch.tensor([5, 6, 30, 98])
    answers, _ = run(any_engine, lambda p: (p.layer, p.fresh_kv(p.layer, rows), p.fresh_kv(p.layer + 1, rows)))
    for layer, here, following in answers:
        for at, (k, v) in ((layer, here), (layer + 1, following)):
            assert relative(k, truth.k[at][:, rows]) < 1e-5
            assert relative(v, truth.v[at][:, rows]) < 1e-5


def test_cached_kv_is_what_the_blocks_hold(engine: Engine) -> None:
    rows = torch.tensor([5, 6, 30, 98])
    answers, layout = run(engine, lambda p: p.cached_kv(3, rows))
    for k, v in answers:
        for i, row in enumerate(rows.tolist()):
            place = next(p for p in layout.placements if p.start <= row < p.stop)
            assert torch.equal(k[:, i], place.block.k[3][:, row - place.start])
            assert torch.equal(v[:, i], place.block.v[3][:, row - place.start])


def test_questions_without_an_answer(engine: Engine) -> None:
    for ask, match in (
        (lambda p: p.fresh_kv(p.layer + 2, torch.tensor([9])), "only layers"),
        (lambda p: p.fresh_kv(p.layer, torch.tensor([2])), "not active"),
        (lambda p: p.cached_kv(0, torch.tensor([2])), "no block"),
    ):
        with pytest.raises(ConfigError, match=match):
            run(engine, ask)
