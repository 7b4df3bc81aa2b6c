"""Who may see whom, as block plans. Every mask is explicit; nothing is left to a kernel's idea of causality.

A planner maps a sliding window (or None) to the blocks of one set of query rows; layers with the same window share
them, and they are made anew only when the active rows change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch.nn import functional

from memory.engine.attention.kernels import Block, padding, query_block

SPARED = 8192  # products of a row and a key that are worth a block more

Planner = Callable[[int | None], list[Block]]


@dataclass
class MaskPlan:
    """Blocks by window, made when first asked for."""

    planner: Planner
    _made: dict[int | None, list[Block]] = field(default_factory=dict)

    def blocks(self, window: int | None) -> list[Block]:
        if window not in self._made:
            self._made[window] = self.planner(window)
        return self._made[window]


def bias_of(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where ``visible``, -inf elsewhere."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))


def _step(rows: int, dtype: torch.dtype, device: torch.device) -> int:
    return rows if device.type == "cuda" else query_block(dtype)


def causal_plan(rows: torch.Tensor, positions: torch.Tensor, dtype: torch.dtype) -> MaskPlan:
    """Query rows ``rows`` (sorted) see every earlier row and themselves; ``positions`` of all rows increase."""
    return MaskPlan(partial(_causal_blocks, rows, positions, dtype))


def _causal_blocks(rows: torch.Tensor, positions: torch.Tensor, dtype: torch.dtype, window: int | None) -> list[Block]:
    bounds = _bounds(rows, dtype)
    ends = rows[[b - 1 for _, b in bounds]].tolist()
    firsts = rows[[a for a, _ in bounds]].tolist()
    blocks = []
    for (q0, q1), first, last in zip(bounds, firsts, ends, strict=True):
        low = 0 if window is None else _window_start(positions, first, window)
        free = first + 1 if window is None or (low == 0 and _spans(positions, last) <= window) else low
        stop = last + 1 + padding(last + 1 - low)
        bias = _causal_bias(rows[q0:q1], positions, free, stop, window, dtype)
        blocks.append(Block(q0, q1, low, stop, bias))
    return blocks


def _bounds(rows: torch.Tensor, dtype: torch.dtype) -> list[tuple[int, int]]:
    """Numbers [first, last) of the rows of each block: of one size, but ending early before wide gaps on a CPU.

    A block reads all keys up to its last row's, so rows in front of a gap would read keys that none of them may see.
    """
    count = rows.numel()
    step = _step(count, dtype, rows.device)
    if rows.is_cuda or count == 0 or int(rows[-1] - rows[0]) + 1 == count:
        return [(start, min(count, start + step)) for start in range(0, count, step)]
    places, bounds, start = rows.tolist(), [], 0
    for number in range(1, count):
        spared = (number - start) * (places[number] - places[number - 1] - 1)
        if number - start == step or spared > SPARED:
            bounds.append((start, number))
            start = number
    return [*bounds, (start, count)]


def _spans(positions: torch.Tensor, last: int) -> int:
    return int(positions[last] - positions[0]) + 1


def _window_start(positions: torch.Tensor, first: int, window: int) -> int:
    """First row that row ``first`` may see: its position lies less than ``window`` back."""
    return int(torch.searchsorted(positions, positions[first] - window, right=True))


def _causal_bias(
    rows: torch.Tensor, positions: torch.Tensor, start: int, stop: int, window: int | None, dtype: torch.dtype
) -> torch.Tensor | None:
    """Bias over key rows ``start:stop``; None if that range is empty."""
    if start >= stop:
        return None
    keys = torch.arange(start, stop, device=rows.device)
    visible = keys[None] <= rows[:, None]
    if window is not None:
        places = positions[keys.clamp(max=positions.numel() - 1)]
        visible &= places[None] > positions[rows][:, None] - window
    return bias_of(visible, dtype)


def unit_plan(
    lengths: Sequence[int], context: int, dtype: torch.dtype, device: torch.device, behind: int = 0
) -> MaskPlan:
    """Packed units: each row sees the ``context`` rows in front and the earlier rows of its own unit.

    Key rows are ``[context][units in order]``; the position of a unit's first row is ``context``. Of the first unit
    ``behind`` rows more, its first, are there already: they are keys, and no query rows.
    """
    first, *others = lengths
    return MaskPlan(partial(_unit_blocks, (behind + first, *others), behind, context, dtype, device))


def _unit_blocks(
    lengths: tuple[int, ...],
    behind: int,
    context: int,
    dtype: torch.dtype,
    device: torch.device,
    window: int | None,
) -> list[Block]:
    sizes = torch.tensor(lengths, device=device)
    unit = torch.repeat_interleave(torch.arange(len(lengths), device=device), sizes)
    starts = (sizes.cumsum(0) - sizes)[unit]  # first packed row of each row's unit
    total = unit.numel()
    step = _step(total, dtype, device)
    blocks = []
    for q0 in range(behind, total, step):
        q1, k0 = min(total, q0 + step), int(starts[q0])
        k1 = q1 + padding(context + q1 - k0)
        rows, keys = torch.arange(q0, q1, device=device), torch.arange(k0, k1, device=device)
        owner = unit[keys.clamp(max=total - 1)]
        visible = (unit[q0:q1, None] == owner[None]) & (keys[None] <= rows[:, None])
        if window is not None:
            visible = _with_context_window(visible, rows, keys, rows - starts[q0:q1], context, window)
        bias = bias_of(visible, dtype)
        blocks.append(Block(q0 - behind, q1 - behind, context + k0, context + k1, bias, context))
    return blocks


def _with_context_window(
    visible: torch.Tensor, rows: torch.Tensor, keys: torch.Tensor, offsets: torch.Tensor, context: int, window: int
) -> torch.Tensor:
    """Cut ``visible`` to the window and put the context's columns in front (``offsets``: row within its unit)."""
    visible = visible & (rows[:, None] - keys[None] < window)
    places = torch.arange(context, device=rows.device)
    seen = context + offsets[:, None] - places[None] < window
    return torch.cat([seen, visible], 1)


def tree_plan(
    ancestry: torch.Tensor, depth: torch.Tensor, positions: torch.Tensor, following: int, dtype: torch.dtype
) -> MaskPlan:
    """Trie nodes behind a prompt: each sees the prompt's rows and the nodes on its path, itself included.

    :param ancestry: (nodes, nodes) bias, 0 for nodes on the path; parents stand before their children
    :param depth: (nodes,) 0 for the first token after the prompt
    :param positions: (prompt rows,)
    :param following: position of the first token after the prompt; rows in front of it may be missing
    """
    return MaskPlan(partial(_tree_blocks, ancestry, depth, positions, following, dtype))


def _tree_blocks(
    ancestry: torch.Tensor,
    depth: torch.Tensor,
    positions: torch.Tensor,
    following: int,
    dtype: torch.dtype,
    window: int | None,
) -> list[Block]:
    nodes, prompt, bias = ancestry.shape[0], positions.numel(), ancestry
    if window is not None:
        place = following + depth
        seen = bias_of(positions[None] > place[:, None] - window, dtype)
        near = bias_of(depth[None] > depth[:, None] - window, dtype)
        bias = torch.cat([seen, ancestry + near], 1)
    before = bias.shape[1] - nodes  # columns of the prompt
    step = _step(nodes, dtype, depth.device)
    cuts = [(start, min(nodes, start + step)) for start in range(0, nodes, step)]
    return [
        Block(q0, q1, 0, prompt + q1 + extra, _masked_behind(bias[q0:q1, : before + q1], extra))
        for q0, q1 in cuts
        for extra in (padding(prompt + q1),)
    ]


def _masked_behind(bias: torch.Tensor, columns: int) -> torch.Tensor:
    return functional.pad(bias, (0, columns), value=float("-inf"))
