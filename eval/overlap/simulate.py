"""Plays a loading stage against given times, exactly as the engine's loader would run it.

Three workers: one computes, one (``narrow=beside_mlp``) chooses the next layer's rows, one moves slices. KEEP's two
rules (arXiv 2602.23592, section 5) are the only places where one waits for another: importance of layer l and the
slices of l + 1 come before computing l + 1, attention of l comes before importance of l.
"""

from __future__ import annotations

import numpy as np

from eval.overlap.link import Courier, Link
from eval.overlap.timeline import COMPUTE, IMPORTANCE, Event, Timeline
from eval.overlap.work import BESIDE, Work
from keep_agent.errors import ConfigError
from memory.loading.serial import Serial
from memory.stages import Loading, Transfer


def simulate(loading: Loading, work: Work, link: Link) -> Timeline:
    """One prefill under ``loading``.

    :raises ConfigError: it leaves a row without keys at some layer
    """
    overlaps = getattr(loading, "overlaps", not isinstance(loading, Serial))
    courier = Courier(link, work.layers, work.row_bytes)
    asked = _Asked(loading, work)
    events: list[Event] = []
    courier.submit(0.0, asked.transfers(0))
    due = 0.0
    for layer in range(work.layers):
        start = max(due, courier.arrival(layer))
        events += _pieces(work, layer, start)
        known, due = start + work.to_choice(layer), start + work.to_end(layer)
        if layer + 1 < work.layers:
            courier.submit(known if overlaps else due, asked.transfers(layer + 1))
    return Timeline.sorted([*events, *courier.jobs])


def _pieces(work: Work, layer: int, start: float) -> list[Event]:
    """The layer's attention, choice and MLP; a choice that is none does not show."""
    attended, known = start + work.times.attention[layer], start + work.to_choice(layer)
    beside = work.narrow == BESIDE
    begin = attended if beside else known
    pieces = [
        Event(COMPUTE, "attention", layer, start, attended),
        Event(IMPORTANCE if beside else COMPUTE, "importance", layer, attended, known),
        Event(COMPUTE, "mlp", layer, begin, begin + work.times.mlp[layer]),
    ]
    return [piece for piece in pieces if piece.kind != "importance" or work.times.importance[layer]]


class _Asked:
    """Asks the stage layer by layer, and sees to it that no row is forgotten."""

    def __init__(self, loading: Loading, work: Work) -> None:
        self._loading, self._work = loading, work
        self._covered = np.zeros(work.resting.shape, bool)

    def transfers(self, layer: int) -> list[Transfer]:
        work = self._work
        found = self._loading.schedule(work.layout, layer, work.active[layer], work.layers)
        for transfer in found:
            start = work.layout.placements[transfer.placement].start
            self._covered[transfer.first : transfer.last, start + transfer.rows[0] : start + transfer.rows[1]] = True
        missing = np.flatnonzero(work.resting[layer] & ~self._covered[layer])
        if missing.size:
            raise ConfigError(
                f"{type(self._loading).__name__} left {missing.size} rows without keys at layer {layer}, first row "
                f"{missing[0]}; every row that is not active must be transferred"
            )
        return found
