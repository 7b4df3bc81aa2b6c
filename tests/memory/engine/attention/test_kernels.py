"""Attention kernel against dense attention, and block plans against the definition of visible rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from memory.engine.attention.kernels import (
    KEY_MULTIPLE,
    MaskBlock,
    MaskPlan,
    bias_of,
    causal_plan,
    device_attention,
    grouped_attention,
    tree_plan,
    unit_plan,
)

WINDOWS = st.sampled_from([None, 1, 5, 24, 1000])
Case = tuple[Sequence[MaskBlock], torch.Tensor]


def dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor, softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    group = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(group, 1).transpose(2, 3) * 0.3
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    scores = scores.masked_fill(~visible, float("-inf"))
    weights = torch.exp(scores)
    total = weights.sum(-1, keepdim=True) + (0 if sinks is None else sinks.exp().view(1, -1, 1, 1))
    return (weights / total @ v.repeat_interleave(group, 1)).transpose(1, 2)


def visible_rows(blocks: Sequence[MaskBlock], queries: int, keys: int) -> torch.Tensor:
    """Return the visible rows (queries, keys) bool of a plan's blocks."""
    record = torch.zeros(queries, keys + KEY_MULTIPLE, dtype=torch.bool)
    for block in blocks:
        assert (block.prefix + block.k1 - block.k0) % KEY_MULTIPLE == 0
        columns = [*range(block.prefix), *range(block.k0, block.k1)]
        visible = torch.ones(block.q1 - block.q0, len(columns), dtype=torch.bool)
        if block.bias is not None:
            visible[:, len(columns) - block.bias.shape[1] :] = block.bias == 0
        record[block.q0 : block.q1, columns] = visible
    assert not record[:, keys:].any(), "padded columns must be masked"
    return record[:, :keys]


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "requests"), [(4, 4, 1), (6, 2, 1), (4, 1, 1), (4, 2, 3)])
def test_grouped_attention(softcap: float | None, with_sinks: bool, heads: int, kv_heads: int, requests: int) -> None:
    torch.manual_seed(0)
    rows = 224
    q = torch.randn(requests, heads, rows, 8, dtype=torch.float64)
    k, v = torch.randn(2, requests, kv_heads, rows, 8, dtype=torch.float64)
    sinks = torch.randn(heads, dtype=torch.float64) if with_sinks else None
    every = torch.arange(rows)
    weights: list[torch.Tensor] = []
    blocks = causal_plan(every, every, torch.float64).blocks(None)
    result = grouped_attention(q, k, v, blocks, 0.3, softcap, sinks, weights)
    torch.testing.assert_close(result, dense(q, k, v, every[None] <= every[:, None], softcap, sinks))
    assert len(blocks) > 1 and [w.shape[1] for w in weights] == [b.q1 - b.q0 for b in blocks]


@pytest.mark.parametrize("attention", [grouped_attention, device_attention])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_blocks_with_a_prefix_and_rows_without_bias(attention: Callable[..., torch.Tensor], kv_heads: int) -> None:
    torch.manual_seed(0)
    q = torch.randn(1, 4, 96, 8, dtype=torch.float64)
    k, v = torch.randn(2, 1, kv_heads, 96, 8, dtype=torch.float64)
    bias = bias_of(torch.rand(56, 4) < 0.5, torch.float64)
    blocks = [MaskBlock(0, 40, 5, 34, None, prefix=3), MaskBlock(40, 96, 2, 66, bias)]
    torch.testing.assert_close(attention(q, k, v, blocks, 0.3), dense(q, k, v, visible_rows(blocks, 96, 96)))


def within(visible: torch.Tensor, rows: torch.Tensor, keys: torch.Tensor, window: int | None) -> torch.Tensor:
    """Hide keys outside the rows' sliding ``window``; ``rows`` and ``keys`` are positions."""
    return visible if window is None else visible & (rows[:, None] - keys[None] < window)


@st.composite
def causal_cases(draw: st.DrawFn, dtype: torch.dtype) -> Case:
    total, window = draw(st.integers(1, 300)), draw(WINDOWS)
    rows = torch.tensor(sorted(draw(st.sets(st.integers(0, total - 1), min_size=1))))
    positions = torch.tensor(draw(st.lists(st.sampled_from([1, 1, 1, 9]), min_size=total, max_size=total))).cumsum(0)
    visible = torch.arange(total)[None] <= rows[:, None]
    return causal_plan(rows, positions, dtype).blocks(window), within(visible, positions[rows], positions, window)


@st.composite
def unit_cases(draw: st.DrawFn, dtype: torch.dtype) -> Case:
    lengths, window = draw(st.lists(st.integers(1, 90), min_size=1, max_size=12)), draw(WINDOWS)
    context, suffix = draw(st.integers(0, 30)), draw(st.integers(0, 30))
    plan = unit_plan(lengths, context, dtype, torch.device("cpu"), suffix)
    lengths = [suffix + lengths[0], *lengths[1:]]  # the first unit begins with computed rows
    places = torch.cat([torch.arange(count) for count in (context, *lengths)])
    owner = torch.arange(-1, len(lengths)).repeat_interleave(torch.tensor([context, *lengths]))
    places[context:] += context
    visible = (places[None] <= places[:, None]) & ((owner[None] == -1) | (owner[None] == owner[:, None]))
    return plan.blocks(window), within(visible, places, places, window)[context + suffix :]


@st.composite
def tree_cases(draw: st.DrawFn, dtype: torch.dtype) -> Case:
    draws, window = draw(st.lists(st.integers(-1, 200), min_size=1, max_size=200)), draw(WINDOWS)
    prompt, gap = draw(st.integers(1, 60)), draw(st.integers(0, 9))
    ancestry = torch.eye(len(draws), dtype=torch.bool)
    for node, parent in enumerate(min(p, i - 1) for i, p in enumerate(draws)):
        if parent >= 0:
            ancestry[node] |= ancestry[parent]
    positions, depth, following = torch.arange(prompt) + 4, ancestry.sum(1) - 1, prompt + 4 + gap  # from position 4 on
    plan = tree_plan(bias_of(ancestry, dtype), depth, positions, following, dtype)
    visible = torch.cat([torch.ones(len(draws), prompt, dtype=torch.bool), ancestry], 1)
    places = following + depth
    return plan.blocks(window), within(visible, places, torch.cat([positions, places]), window)


def cases(dtype: torch.dtype) -> st.SearchStrategy[Case]:
    """Blocks of causal, unit and tree plans, and the visible keys (rows, keys) bool of their definitions."""
    return st.one_of(causal_cases(dtype), unit_cases(dtype), tree_cases(dtype))


@given(st.sampled_from([torch.float32, torch.bfloat16]).flatmap(cases))
@settings(max_examples=180)
def test_the_blocks_of_a_plan_have_its_visible_keys(case: Case) -> None:
    blocks, visible = case
    assert torch.equal(visible_rows(blocks, *visible.shape), visible)


def test_a_plan_is_made_once_per_window() -> None:
    calls: list[int | None] = []
    plan = MaskPlan(lambda window: calls.append(window) or [])
    for window in (None, 4, None, 4):
        plan.blocks(window)
    assert calls == [None, 4]


@pytest.mark.parametrize("window", [None, 100])
def test_rows_before_a_gap_read_no_keys_behind_it(window: int | None) -> None:
    rows = torch.cat([torch.arange(300, 340), torch.arange(345, 350), torch.arange(900, 940), torch.arange(1400, 1464)])
    places = torch.arange(1464)
    blocks = causal_plan(rows, places, torch.float32).blocks(window)
    assert [(b.q0, b.q1) for b in blocks] == [(0, 45), (45, 85), (85, 149)], "a narrow gap is not worth a block"
    assert all(0 <= b.k1 - stop < KEY_MULTIPLE for b, stop in zip(blocks, (350, 940, 1464), strict=True))
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, n, 8, generator=generator) for n in (rows.numel(), *[1464 + KEY_MULTIPLE] * 2))
    visible = places[None] <= rows[:, None]
    if window is not None:
        visible &= places[None] > rows[:, None] - window
    expected = dense(q, k[:, :, :1464], v[:, :, :1464], visible)
    torch.testing.assert_close(grouped_attention(q, k, v, blocks, 0.3), expected, rtol=1e-5, atol=1e-5)
