"""Laws 1 to 4: exactness of recomputation and reuse. Error: largest difference over the largest expected magnitude."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from transformers import DynamicCache

from memory.engine.base import Engine
from memory.engine.models.tiny_models import FAMILIES
from memory.kv_cache.block import KVBlock
from memory.loading.serial import Serial
from memory.recompute.full import Full
from memory.recompute.none import Nothing
from memory.stages import Recompute
from tests.laws.conftest import GetEngine
from tests.laws.prompts import Always, Prompt, relative, shrinking, tokens
from tests.references.isolated import dense_mask, full_reuse

Routes = dict[str, tuple[torch.Tensor, ...]]  # outputs of the routers by module name

EXACT, BFLOAT16 = 1e-5, 5e-2  # EXACT is for float32


@contextmanager
def routing_of(model: torch.nn.Module, forced: Routes | None = None) -> Iterator[Routes]:
    """Record the outputs of the expert routers of ``model``, or replace them by the last rows of ``forced`` outputs."""
    routes: Routes = {}

    def record(name: str, output: tuple[torch.Tensor, ...]) -> object:
        routes[name] = output
        if forced is None:
            return output
        return tuple(rows[-len(out) :].to(out.device) for rows, out in zip(forced[name], output, strict=True))

    routers = [(name, m) for name, m in model.named_modules() if type(m).__name__.endswith("Router")]
    hooks = [m.register_forward_hook(lambda _m, _i, out, name=name: record(name, out)) for name, m in routers]
    yield routes
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize(("context", "stage"), [(0, Full()), (7, Always()), (7, Always(7))])
def test_law_1_recomputing_everything_is_the_plain_forward(engine: Engine, context: int, stage: Recompute) -> None:
    """The prompt has no context, a recomputed context, or a reused one."""
    prompt = Prompt.random(context=context)
    result = engine.prefill(prompt.layout(prompt.blocks(engine)), stage, Serial(), prompt.context_block(engine))
    assert relative(result.logits[0], engine.forward_plain(prompt.ids)[-1]) < EXACT


@pytest.mark.parametrize("family", FAMILIES)
def test_law_1_in_bfloat16(family: str, engine_of: GetEngine) -> None:
    """Force the plain forward's expert routing on the engine, because rounding can change it."""
    engine, prompt = engine_of(family, torch.bfloat16), Prompt.random()
    layout = prompt.layout(prompt.blocks(engine))
    with routing_of(engine.plain) as routes:
        expected = engine.forward_plain(prompt.ids)[-1].float()
    with routing_of(engine.decoder.module, routes):
        result = engine.prefill(layout, Full(), Serial())
    assert relative(result.logits[0], expected) < BFLOAT16


@pytest.mark.parametrize("context", [0, 7, 40])
def test_law_2_recomputing_nothing_encodes_every_unit_alone(engine: Engine, context: int) -> None:
    prompt = Prompt.random(context=context)
    block = prompt.context_block(engine)
    result = engine.prefill(prompt.layout(prompt.blocks(engine)), Nothing(), Serial(), block)
    expected = full_reuse(engine.plain, prompt.context, prompt.units, prompt.query)
    assert relative(result.logits[0], expected[-1]) < EXACT
    assert relative(result.logits[0], engine.forward_plain(prompt.ids)[-1]) > 1e-2, "units must interact"


def test_law_2_without_context_is_one_block_diagonal_forward(engine: Engine) -> None:
    prompt = Prompt.random()
    layout = prompt.layout(prompt.blocks(engine))
    result = engine.prefill(layout, Nothing(), Serial())
    owner, rows = layout.segment_of, torch.arange(layout.rows)
    visible = ((owner[:, None] == owner[None]) | (owner[:, None] < 0)) & (rows[None] <= rows[:, None])
    expected = engine.forward_plain(prompt.ids, dense_mask(engine.plain, visible, rows, rows))
    assert relative(result.logits[0], expected[-1]) < EXACT


@pytest.mark.parametrize("cut", [1, 33, 93])
def test_law_3_a_reused_prefix_is_exact(engine: Engine, cut: int) -> None:
    donor = Prompt.random()
    run = engine.prefill(donor.layout([None] * 4), Always(), Serial(), keep_raw=True)
    head = engine.harvest(run.cache, range(cut))
    heir = Prompt((tuple(donor.ids[:cut].tolist()), tuple(tokens(15, 70))), tuple(tokens(9, 71)))
    result = engine.prefill(heir.layout([head, None]), Nothing(), Serial())
    assert relative(result.logits[0], engine.forward_plain(heir.ids)[-1]) < EXACT
    assert result.trace.active_rows == [heir.ids.numel() - cut] * engine.info.layers


def test_law_3_rows_harvested_after_reused_and_generated_rows_are_exact(engine: Engine) -> None:
    first = Prompt.random((30,), query=10)
    run = engine.prefill(first.layout([None]), Always(), Serial(), keep_raw=True)
    answer = engine.generate(run.cache, run.logits, 6)
    ids = (*first.ids.tolist(), *answer)
    block = engine.harvest(run.cache, range(len(ids)))
    second = Prompt((ids, tuple(tokens(8, 72))), tuple(tokens(5, 73)))
    run = engine.prefill(second.layout([block, None]), Nothing(), Serial(), keep_raw=True)
    block = engine.harvest(run.cache, range(second.ids.numel()))
    third = Prompt((tuple(second.ids.tolist()),), tuple(tokens(5, 74)))
    result = engine.prefill(third.layout([block]), Nothing(), Serial())
    assert relative(result.logits[0], engine.forward_plain(third.ids)[-1]) < EXACT


@pytest.mark.parametrize("shift", [1, 57])
def test_law_4_a_moved_block_equals_the_block_computed_at_its_position(engine: Engine, shift: int) -> None:
    prompt = Prompt((tuple(tokens(shift, 5)), tuple(tokens(31, 6))), tuple(tokens(4, 7)))
    result = engine.prefill(prompt.layout(prompt.blocks(engine)), Nothing(), Serial())
    expected, rows = DynamicCache(), slice(shift, shift + 31)
    places = torch.arange(shift, shift + 31)[None]
    engine.plain(torch.tensor([prompt.units[1]]), position_ids=places, past_key_values=expected)
    for layer in range(engine.info.layers):
        k, v = result.cache.read(layer, result.cache.length)
        assert relative(k[:, :, rows], expected.layers[layer].keys) < EXACT
        assert relative(v[:, :, rows], expected.layers[layer].values) < EXACT


def test_any_shrinking_set_over_exact_blocks_is_the_plain_forward(engine: Engine) -> None:
    """Writing recomputed rows between stored rows is itself exact."""
    prompt = Prompt.random()
    run = engine.prefill(prompt.layout([None] * 4), Always(), Serial(), keep_raw=True)
    exact: list[KVBlock] = [
        engine.harvest(run.cache, range(a, a + len(u))) for a, u in zip(prompt.starts, prompt.units, strict=True)
    ]
    layout = prompt.layout(exact)
    for seed in range(3):
        result = engine.prefill(layout, shrinking(layout, engine.info.layers, seed=seed), Serial())
        assert relative(result.logits[0], engine.forward_plain(prompt.ids)[-1]) < EXACT
        assert sorted(result.trace.active_rows, reverse=True) == result.trace.active_rows


def test_positions_may_start_anywhere(engine: Engine) -> None:
    prompt = Prompt(Prompt.random().units, Prompt.random().query, first_position=300)
    layout = prompt.layout([None] * 4)
    result = engine.prefill(layout, Always(), Serial())
    expected = engine.forward_plain(prompt.ids, position_ids=layout.positions[None])[-1]
    assert relative(result.logits[0], expected) < EXACT
