"""The floor of a step: operations and bytes that a method must spend on it, at the rates of the machine.

Counted are, per forward pass:

* the products of every row that the method computes in a layer. A row that is not computed in the next layer must only
  have given its keys and values: where a stage chooses by attention, its queries, output and MLP are left out. A stage
  that compares the next layer's values (CacheBlend) must finish the layer for all rows and make those values too;
* in the last layer keys and values of the active rows, everything else for the last row alone;
* attention over the rows that a row sees (causal, within the layer's window). Which of the stored rows were recomputed
  a trace does not say: they are taken for the first ones, which see least;
* the head for one row;
* weights read once per pass, the prompt's keys and values read once, what is loaded from blocks written once.

Not counted are norms, softmax, RoPE, the choice itself (importance, deviations), reading blocks out of a packed form,
planning, and whatever does not run on the device. Encoding of missing blocks is a pass of its own; so are the context
prefix and a latent choice's query states, of which attention is left out. A mixture counts its active experts, for one
row's weights as well: a floor, not an estimate. A pass takes the larger of the times for operations and for bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from eval.timing.rates import Rates
from eval.timing.shape import Shape

if TYPE_CHECKING:
    from memory.report import Prefill
    from memory.stages import Layout

PACK_ROWS = 4096  # rows of one encoding pass
Positions = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Work:
    """What one pass must do: operations, bytes read or written on the device, bytes loaded from blocks."""

    flops: int
    moved: int
    loaded: int = 0

    def ms(self, rates: Rates) -> float:
        """Milliseconds at least."""
        moved, carrying = self.moved + self.loaded, 0.0
        if rates.carried is None:
            moved += self.loaded  # read here, written there
        else:
            carrying = self.loaded / rates.carried
        return 1e3 * max(self.flops / rates.flops, moved / rates.moved, carrying)


def floor_ms(works: Sequence[Work], rates: Rates) -> float:
    """Of passes one after another."""
    return sum(work.ms(rates) for work in works)


def plain_work(shape: Shape, rows: int) -> Work:
    """All rows of a prompt in one pass."""
    return _pass(shape, [np.arange(rows)] * shape.layers, rows, compares=False)


def step_work(shape: Shape, prefill: Prefill, compares: bool) -> tuple[Work, ...]:
    """The passes of one step; ``compares``: the recompute stage looks at values of the layer to come."""
    layout, trace = prefill.layout, prefill.trace
    active = [_least(layout, count) for count in trace.active_rows]
    prompt = _pass(shape, active, layout.rows, compares, trace.loaded_bytes)
    made = {use.identity: use.tokens for use in prefill.units if use.identity and not use.hit}
    lengths, encoded = np.array([*made.values()], np.int64), prefill.counts.encoded_token_layers
    others = max(0, encoded - int(lengths.sum()) * shape.layers)
    return (*_encoding(shape, lengths, layout.context), *_bare(shape, others), prompt)


def _least(layout: Layout, count: int) -> Positions:
    """Positions of ``count`` active rows that see as little as can be: the fresh ones, and the first of the others."""
    fresh, positions = layout.fresh.cpu().numpy(), layout.positions.cpu().numpy()
    first = positions[~fresh][: max(0, count - int(fresh.sum()))]
    return np.concatenate([positions[fresh], first])[:count]


def _pairs(positions: Positions, window: int | None) -> int:
    """Rows seen by the rows at ``positions``, themselves included."""
    seen = positions + 1
    return int((seen if window is None else np.minimum(seen, window)).sum())


def _pass(shape: Shape, active: Sequence[Positions], rows: int, compares: bool, loaded: int = 0) -> Work:
    """Layer after layer with the rows ``active``, over a prompt of ``rows``."""
    flops = shape.head
    for layer, here in enumerate(active):
        on = active[layer + 1] if layer + 1 < len(active) else np.array([rows - 1])
        dropped = len(here) - len(on) if layer + 1 < len(active) else 0
        if compares and dropped:
            on = here
            flops += dropped * shape.value
        flops += 2 * len(here) * shape.value + len(on) * shape.rest + shape.pair * _pairs(on, shape.windows[layer])
    return Work(flops, shape.layer_bytes + shape.head_bytes + rows * shape.token_bytes, loaded)


def _encoding(shape: Shape, lengths: NDArray[np.int64], context: int) -> tuple[Work, ...]:
    """Isolated units behind ``context`` rows, packed; of the last layer only keys and values."""
    rows = int(lengths.sum())
    if not rows:
        return ()
    pairs = int((lengths * context + lengths * (lengths + 1) // 2).sum())
    flops = 2 * shape.layers * rows * shape.value + (shape.layers - 1) * (rows * shape.rest + pairs * shape.pair)
    passes = -(-rows // PACK_ROWS)
    return (Work(flops, passes * shape.layer_bytes + (rows + context) * shape.token_bytes),)


def _bare(shape: Shape, token_layers: int) -> tuple[Work, ...]:
    """Rows of a pass of which nothing but their number is known; of the last layer only keys and values."""
    if not token_layers:
        return ()
    rows = token_layers / shape.layers
    flops = int(rows * (2 * shape.layers * shape.value + (shape.layers - 1) * shape.rest))
    return (Work(flops, int(min(1.0, rows) * shape.layer_bytes)),)
