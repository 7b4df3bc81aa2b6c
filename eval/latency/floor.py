"""The floor of a step: operations and bytes that a method must spend on it, at the rates of the machine.

Counted are, per layer:

* the products of every row that the method computes there. A row that is not computed in the next layer must only
  have given its keys and values: where a stage chooses by attention, its queries, output and MLP are left out. A stage
  that compares the next layer's values (CacheBlend) must finish the layer for all rows and make those values too;
* in the last layer keys and values of the active rows, everything else for the last row alone;
* attention over the rows that a row sees (causal, within the layer's window). Which of the stored rows were recomputed
  a trace does not say: they are taken for the first ones, which see least;
* the same for missing blocks, which have to be encoded: in the same pass, so that weights are read once. The context
  prefix and a latent choice's query states count there as well, of which attention is left out;
* its weights, and the prompt's keys and values, read once.

Behind the layers comes the head for one row. Each of these pieces needs what the one before it made, and takes the
larger of the times for operations and for bytes. What is loaded from blocks may be moved beside all that: the floor is
not below the time of the link alone.

Beside it stands what the rows cost if each that is computed in a layer goes through all of it, attention and MLP, the
last layer included: rows x layers, as methods are compared in papers.

Not counted are norms, softmax, RoPE, the choice itself (importance, deviations), reading blocks out of a packed form,
planning, and whatever does not run on the device. A mixture counts its active experts, for one row's weights as well:
a floor, not an estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from eval.latency.rates import Rates
from eval.loading.layer_costs import Shape

if TYPE_CHECKING:
    from memory.reports.prefill import Prefill
    from memory.stages import Layout

Positions = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Work:
    """What must be done: per piece operations and bytes read or written on the device; bytes loaded from blocks.

    ``through`` are the operations of rows that all go through whole layers.
    """

    flops: tuple[int, ...] = ()
    moved: tuple[int, ...] = ()
    loaded: int = 0
    through: tuple[int, ...] = ()

    def floor_ms(self, rates: Rates) -> float:
        """Milliseconds at least."""
        return self._ms(self.flops, rates)

    def rows_ms(self, rates: Rates) -> float:
        """Milliseconds at least, of rows x layers."""
        return self._ms(self.through, rates)

    def _ms(self, flops: Sequence[int], rates: Rates) -> float:
        pieces = zip(flops, self.moved, strict=True)
        computing = sum(max(flops / rates.flops, moved / rates.moved) for flops, moved in pieces)
        link = 2 * self.loaded / rates.moved if rates.carried is None else self.loaded / rates.carried  # read and write
        return 1e3 * max(computing, link)


def plain_work(shape: Shape, rows: int) -> Work:
    """All rows of a prompt in one pass."""
    active = [np.arange(rows)] * shape.layers
    return _work(shape, _pass_flops(shape, active, compares=False), _whole_layer_flops(shape, active), rows, 0)


def step_work(shape: Shape, prefill: Prefill, compares: bool) -> Work:
    """One step; ``compares``: the recompute stage looks at values of the layer to come."""
    layout, trace = prefill.layout, prefill.trace
    active = [_cheapest_positions(layout, count) for count in trace.active_rows]
    made = {use.identity: use.tokens for use in prefill.units if use.identity and not use.hit}
    lengths, encoded = np.array([*made.values()], np.int64), prefill.counts.encoded_token_layers
    others = max(0, encoded - int(lengths.sum()) * shape.layers)
    aside = _encoding_flops(shape, lengths, layout.context), _other_flops(shape, others)
    least, through = (
        [sum(layer) for layer in zip(own, *aside, strict=True)]
        for own in (_pass_flops(shape, active, compares), _whole_layer_flops(shape, active))
    )
    return _work(shape, least, through, layout.rows + int(lengths.sum()), trace.loaded_bytes)


def _work(shape: Shape, least: Sequence[int], through: Sequence[int], rows: int, loaded: int) -> Work:
    """Layers with so many operations each, in all of which keys and values of ``rows`` are read, and the head."""
    moved = shape.layer_bytes + rows * shape.row_bytes
    pieces = (*(moved for _ in least), shape.head_bytes)
    return Work((*least, shape.head), pieces, loaded, (*through, shape.head))


def _cheapest_positions(layout: Layout, count: int) -> Positions:
    """Positions of ``count`` active rows that see as little as can be: the fresh ones, and the first of the others."""
    fresh, positions = layout.fresh.cpu().numpy(), layout.positions.cpu().numpy()
    first = positions[~fresh][: max(0, count - int(fresh.sum()))]
    return np.concatenate([positions[fresh], first])[:count]


def _visible_pairs(positions: Positions, window: int | None) -> int:
    """Rows seen by the rows at ``positions``, themselves included."""
    seen = positions + 1
    return int((seen if window is None else np.minimum(seen, window)).sum())


def _pass_flops(shape: Shape, active: Sequence[Positions], compares: bool) -> list[int]:
    """Operations layer by layer with the rows ``active``."""
    found, last = [], np.array([active[-1][-1]])
    for here, on, window in zip(active, [*active[1:], last], shape.windows, strict=True):
        dropped = len(here) - len(on) if on is not last else 0
        flops = dropped * shape.value if compares else 0
        through = here if compares and dropped else on
        flops += 2 * len(here) * shape.value + len(through) * shape.rest + shape.pair * _visible_pairs(through, window)
        found.append(flops)
    return found


def _whole_layer_flops(shape: Shape, active: Sequence[Positions]) -> list[int]:
    """Operations layer by layer where the rows ``active`` go through all of it."""
    row = 2 * shape.value + shape.rest
    layers = zip(active, shape.windows, strict=True)
    return [len(rows) * row + shape.pair * _visible_pairs(rows, window) for rows, window in layers]


def _encoding_flops(shape: Shape, lengths: NDArray[np.int64], context: int) -> list[int]:
    """Isolated units behind ``context`` rows; of the last layer only keys and values."""
    rows, pairs = int(lengths.sum()), int((lengths * context + lengths * (lengths + 1) // 2).sum())
    keys, rest = 2 * rows * shape.value, rows * shape.rest + pairs * shape.pair
    return [keys + rest] * (shape.layers - 1) + [keys]


def _other_flops(shape: Shape, token_layers: int) -> list[int]:
    """Rows of a pass of which nothing but their number is known; of the last layer only keys and values."""
    rows = token_layers / shape.layers
    keys, rest = int(2 * rows * shape.value), int(rows * shape.rest)
    return [keys + rest] * (shape.layers - 1) + [keys]
