"""Attention kernel against dense attention, and block plans against the definition of visible rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from memory.engine.attention.kernels import (
    KEY_MULTIPLE,
    Block,
    MaskPlan,
    bias_of,
    causal_plan,
    device_attention,
    grouped_attention,
    tree_plan,
    unit_plan,
)

WINDOWS = st.sampled_from([None, 1, 5, 24, 1000])


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


def visible_rows(blocks: Sequence[Block], queries: int, keys: int) -> torch.Tensor:
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
    blocks = [Block(0, 40, 5, 34, None, prefix=3), Block(40, 96, 2, 66, bias)]
    torch.testing.assert_close(attention(q, k, v, blocks, 0.3), dense(q, k, v, visible_rows(blocks, 96, 96)))


@given(st.data(), st.integers(1, 300), WINDOWS, st.sampled_from([torch.float32, torch.bfloat16]))
@settings(max_examples=60)
def test_causal_plan(data: st.DataObject, total: int, window: int | None, dtype: torch.dtype) -> None:
    steps = data.draw(st.lists(st.sampled_from([1, 1, 1, 9]), min_size=total, max_size=total))
    positions = torch.tensor(steps).cumsum(0)
    selection = data.draw(st.sets(st.integers(0, total - 1), min_size=1))
    rows = torch.tensor(sorted(selection))
    every = torch.arange(total)
    expected = every[None] <= rows[:, None]
    if window is not None:
        expected &= positions[rows][:, None] - positions[None] < window
    blocks = causal_plan(rows, positions, dtype).blocks(window)
    assert torch.equal(visible_rows(blocks, rows.numel(), total), expected)


@given(st.lists(st.integers(1, 90), min_size=1, max_size=12), st.integers(0, 30), st.integers(0, 30), WINDOWS)
@settings(max_examples=60)
def test_unit_plan(lengths: list[int], context: int, suffix: int, window: int | None) -> None:
    plan = unit_plan(lengths, context, torch.float32, torch.device("cpu"), suffix)
    lengths = [suffix + lengths[0], *lengths[1:]]  # the first has rows that are computed already
    total, row = sum(lengths), 0
    expected = torch.zeros(total, context + total, dtype=torch.bool)
    for length in lengths:
        for part in range(length):
            for key in range(context + part + 1):
                expected[row + part, key + (row if key >= context else 0)] = (
                    window is None or context + part - key < window
                )
        row += length
    assert torch.equal(visible_rows(plan.blocks(window), total - suffix, context + total), expected[suffix:])


@given(st.lists(st.integers(-1, 200), min_size=1, max_size=200), st.integers(1, 60), st.integers(0, 9), WINDOWS)
@settings(max_examples=60)
def test_tree_plan(draws: list[int], prompt: int, gap: int, window: int | None) -> None:
    parents = [min(p, i - 1) for i, p in enumerate(draws)]
    nodes, ancestry = len(parents), torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            ancestry[node] |= ancestry[parent]
    depth = ancestry.sum(1) - 1
    positions, following = torch.arange(prompt) + 4, prompt + 4 + gap  # so many rows in front are missing
    places = torch.cat([positions, following + depth])
    expected = torch.cat([torch.ones(nodes, prompt, dtype=torch.bool), ancestry], 1)
    if window is not None:
        expected &= places[prompt:][:, None] - places[None] < window
    plan = tree_plan(bias_of(ancestry, torch.float32), depth, positions, following, torch.float32)
    assert torch.equal(visible_rows(plan.blocks(window), nodes, prompt + nodes), expected)


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
