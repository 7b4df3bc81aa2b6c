"""Floor of a step: the least time for the operations and bytes that a method needs, at the machine's peak rates.

Counted per layer:

* matrix products of every row that the method computes. A row that is not computed in the next layer needs only keys
  and values, so its queries, output and MLP are not counted. But a stage that compares the next layer's values
  (CacheBlend) must finish the layer for all rows, and compute those values too;
* in the last layer, keys and values of the computed rows, and everything else for the last row alone;
* attention over the rows visible to a row (causal, in the layer's window). The trace does not record which stored rows
  were recomputed: the floor assumes the first ones, which see the fewest rows;
* matrix products and attention to encode missing blocks, as if in the same pass, so that weights are read once.
  Rows of the context prefix and of the pass for query states (latent retrieval) are added without their attention;
* the layer's weights, and the prompt's keys and values, read once.

The pieces of a step are its layers and then the head for one row. Each piece depends on the previous one, and takes the
larger of its times for operations and for bytes. Blocks load during all pieces: the floor is at least their load time.

For comparison, `rows_ms` is the least time if each row computed in a layer goes through the whole layer (attention and
MLP), also in the last layer. Papers compare methods by the number of computed rows, summed over the layers.

Not counted: norms, softmax, RoPE, the choice of rows (importance, deviations), unpacking of blocks, planning, and all
work outside the device. Of a mixture of experts only the weights that one row uses count as read, although other rows
use other experts. So the result is a lower bound, not an estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eval.latency.machine import Rates
from eval.loading.costs import Shape
from memory.prompt.layout import Layout
from memory.prompt.report import Prefill

Positions = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepWork:
    """Operations and bytes of a step by piece: the layers, then the head."""

    flops: tuple[int, ...] = ()  # operations per piece
    nbytes: tuple[int, ...] = ()  # bytes of device memory read per piece
    loaded: int = 0  # bytes loaded from blocks
    full_flops: tuple[int, ...] = ()  # operations per piece if all rows pass through whole layers

    def rows_ms(self, rates: Rates) -> float:
        """Return the least time in milliseconds if all computed rows pass through whole layers."""
        return self.floor_ms(rates, self.full_flops)

    def floor_ms(self, rates: Rates, flops: Sequence[int] | None = None) -> float:
        """Return the least time in milliseconds; ``flops``: operations per piece to use instead of those counted."""
        pieces = zip(self.flops if flops is None else flops, self.nbytes, strict=True)
        computing = sum(max(flops / rates.flops, nbytes / rates.bandwidth) for flops, nbytes in pieces)
        link = rates.bandwidth / 2 if rates.link is None else rates.link  # no link: a copy in memory reads and writes
        return 1e3 * max(computing, self.loaded / link)


def plain_forward_work(shape: Shape, rows: int) -> StepWork:
    """Return the work of all rows of a prompt in one pass."""
    active = [np.arange(rows)] * shape.layers
    return _work(shape, _pass_flops(shape, active, compares_values=False), _whole_layer_flops(shape, active), rows, 0)


def step_work(shape: Shape, prefill: Prefill, compares_values: bool) -> StepWork:
    """Return the work of one step; ``compares_values``: the recompute stage compares values of the next layer."""
    layout, trace = prefill.layout, prefill.trace
    active = [_cheapest_positions(layout, count) for count in trace.active_rows]
    encoded_units = {use.identity: use.tokens for use in prefill.units if use.identity and not use.hit}
    lengths, encoded = np.array([*encoded_units.values()], np.int64), prefill.counts.encoded_token_layers
    remaining = max(0, encoded - int(lengths.sum()) * shape.layers)
    encoding = _encoding_flops(shape, lengths, layout.context), _row_flops(shape, remaining)
    least, full_flops = (
        [sum(layer) for layer in zip(flops, *encoding, strict=True)]
        for flops in (_pass_flops(shape, active, compares_values), _whole_layer_flops(shape, active))
    )
    return _work(shape, least, full_flops, layout.rows + int(lengths.sum()), trace.loaded_bytes)


def _work(shape: Shape, least: Sequence[int], full_flops: Sequence[int], rows: int, loaded: int) -> StepWork:
    """Return the work of the layers and the head; ``least``: operations by layer, ``rows``: KV rows that each reads."""
    nbytes, head = shape.layer_bytes + rows * shape.row_bytes, shape.head_ops
    return StepWork((*least, head), (*(nbytes for _ in least), shape.head_bytes), loaded, (*full_flops, head))


def _cheapest_positions(layout: Layout, count: int) -> Positions:
    """Return positions of ``count`` active rows: the fresh, and the first of the others, which see the fewest rows."""
    fresh, positions = layout.fresh.cpu().numpy(), layout.positions.cpu().numpy()
    first = positions[~fresh][: max(0, count - int(fresh.sum()))]
    return np.concatenate([positions[fresh], first])[:count]


def _pairs(positions: Positions, window: int | None) -> int:
    """Sum, over the rows at ``positions``, the number of rows visible to each, itself included."""
    return int(np.minimum(positions + 1, np.inf if window is None else window).sum())


def _pass_flops(shape: Shape, active: Sequence[Positions], compares_values: bool) -> list[int]:
    """Return the least operations of each layer; ``active``: positions of the rows computed in each layer."""
    layers, last = [], np.array([active[-1].max()])
    for rows, next_rows, window in zip(active, [*active[1:], last], shape.windows, strict=True):
        dropped = len(rows) - len(next_rows) if next_rows is not last else 0
        flops = dropped * shape.value_ops if compares_values else 0
        whole = rows if compares_values and dropped else next_rows
        flops += 2 * len(rows) * shape.value_ops + len(whole) * shape.other_ops + shape.pair_ops * _pairs(whole, window)
        layers.append(flops)
    return layers


def _whole_layer_flops(shape: Shape, active: Sequence[Positions]) -> list[int]:
    """Return the operations of each layer if its ``active`` rows pass through the whole layer."""
    row = 2 * shape.value_ops + shape.other_ops
    layers = zip(active, shape.windows, strict=True)
    return [len(rows) * row + shape.pair_ops * _pairs(rows, window) for rows, window in layers]


def _encoding_flops(shape: Shape, lengths: NDArray[np.int64], context: int) -> list[int]:
    """Return operations per layer to encode blocks after ``context`` rows; the last layer computes only KV."""
    rows, pairs = int(lengths.sum()), int((lengths * context + lengths * (lengths + 1) // 2).sum())
    keys, rest = 2 * rows * shape.value_ops, rows * shape.other_ops + pairs * shape.pair_ops
    return [keys + rest] * (shape.layers - 1) + [keys]


def _row_flops(shape: Shape, token_layers: int) -> list[int]:
    """Return operations per layer for ``token_layers`` without attention; the last layer computes only KV."""
    rows = token_layers / shape.layers
    keys, rest = int(2 * rows * shape.value_ops), int(rows * shape.other_ops)
    return [keys + rest] * (shape.layers - 1) + [keys]
