"""KEEP's choice of what to recompute: importance travels from the query over segments to segments."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from keep_agent.errors import ConfigError, check_choice
from memory.prompt.layout import Layout
from memory.recompute.schedule import Schedule
from memory.stages import Capabilities, Probe

DIRECTIONS = ("causal", "both")
Array = NDArray[np.float64]


@dataclass
class MultiHop:
    """KEEP (arXiv 2602.23592, section 4.2): after a layer's attention the top share of segments stays active.

    Importance is the attention mass from the query, then from the segments chosen last, until the choice stands still
    or ``max_hops`` are done; the mean over heads and rows, and over a segment's tokens, so that length does not decide.
    The query goes on asking beside them: in every hop its own importance counts for the share ``query_weight``, or a
    line that only the question names is lost again (0 is the paper's words). ``max_hops=0`` leaves the query's own
    choice. ``direction=both`` also scores segments behind the chosen ones, which causal attention never reaches.

    Under a causal mask a plain mean favours the first segments, whatever the query is about: all rows see them, and the
    rows that see little else share their attention among few. ``relative`` (the default) takes the mean over the rows
    that can see a segment, in units of even attention over what they see: at the grain of segments,
    sum_c tokens(c) end(c) mass(c, m) / sum_c tokens(c), over the chosen c not before m. The paper's words are
    ``relative=false``.

    ``limit`` is the share of all token-layers of a prompt that may be computed: what its query, its new rows and layer
    0 leave of it bounds the schedule's average. So a short prompt, much of which is the query, recomputes less of its
    memory than a long one, and nothing where there is no room for layer 0.

    Segments without usable blocks are always active and compete for nothing, as do segments whose stored keys and
    values are exact: these are never active.
    """

    schedule: Schedule = field(default_factory=Schedule)
    max_hops: int = 4
    direction: str = "causal"
    relative: bool = True
    query_weight: float = 0.5
    limit: float | None = None
    capabilities: ClassVar[Capabilities] = Capabilities(exact=False, repairs=True, by_mass=True)

    def __post_init__(self) -> None:
        check_choice("direction", self.direction, DIRECTIONS)
        if self.max_hops < 0:
            raise ConfigError(f"max_hops={self.max_hops} is negative: use 0 (the query's own choice) or more")
        if not 0 <= self.query_weight <= 1:
            raise ConfigError(f"query_weight={self.query_weight} is a share: use 0 to 1")
        if self.limit is not None and not 0 <= self.limit <= 1:
            raise ConfigError(f"limit={self.limit} is a share: use 0 to 1, or null for no limit")

    def first(self, layout: Layout, layers: int) -> torch.Tensor:
        reused = layout.reused.cpu().numpy()
        self._layout = layout
        self._weights = np.array([span.stop - span.start for span in layout.segments], np.float64)
        self._ends = np.array([span.stop for span in layout.segments], np.float64)
        self._playing = np.array([reused[span.start : span.stop].any() for span in layout.segments], bool)
        schedule = self._within(layout, layers)
        if schedule is None:
            self._counts = []
            return layout.fresh.nonzero()[:, 0]
        self._counts = schedule.counts(layers, int(self._playing.sum()))
        return (~layout.exact).nonzero()[:, 0]

    def narrow(self, layer: int, active: torch.Tensor, probe: Probe) -> torch.Tensor:
        if layer + 1 >= len(self._counts):
            return active
        count = self._counts[layer + 1]
        if count >= int(self._playing.sum()):
            return active
        chosen = self._choose(count, probe) if count else np.zeros(0, np.int64)
        self._playing[:] = False
        self._playing[chosen] = True
        playing = torch.from_numpy(np.append(self._playing, False)).to(active.device)  # -1 is no segment
        return active[playing[self._layout.segment_of[active]] | self._layout.fresh[active]]

    def _within(self, layout: Layout, layers: int) -> Schedule | None:
        """The schedule, its average no more than what ``limit`` leaves for the rows that are reused; None: nothing."""
        new, exact = int(layout.fresh.sum()), int(layout.exact.sum())
        reused = layout.rows - new - exact
        if self.limit is None or layers < 2 or not reused:
            return self.schedule
        left = (self.limit * layout.rows - new) * layers - reused  # layer 0 computes all of them
        if left < 0:
            return None
        average = min(self.schedule.average, left / (reused * (layers - 1)))
        return replace(self.schedule, average=average)

    def _choose(self, count: int, probe: Probe) -> NDArray[np.int64]:
        """The relevant set: indices of ``count`` segments."""
        mass = _numbers(probe.mass_from_query())
        chosen = direct = self._top(mass, count)
        between = np.zeros((len(mass), len(mass)))
        known = np.zeros(len(mass), bool)
        hops, same = 0, False
        while hops < self.max_hops and not same:
            hops += 1
            new = chosen[~known[chosen]]
            if len(new):
                between[new] = self._between(new, probe)
                known[new] = True
            given = (1 - self.query_weight) * self._propagate(chosen, between)
            following = self._top(given + self.query_weight * self._in_units(mass), count)
            same = np.array_equal(chosen, following)
            chosen = following
        probe.report(hops, _edges(chosen, direct, mass, between, known))
        return chosen

    def _propagate(self, chosen: NDArray[np.int64], between: Array) -> Array:
        """(segments,) importance that the ``chosen`` segments give."""
        asking = self._weights[chosen]
        if not self._compares:
            return asking @ between[chosen] / asking.sum()
        seen = chosen[:, None] >= np.arange(len(between))  # by whom
        return (asking * self._ends[chosen]) @ between[chosen] / np.maximum(asking @ seen, 1)

    def _in_units(self, mass: Array) -> Array:
        """The query's ``mass`` in the units of a hop: the query's rows see every segment."""
        return mass * self._layout.rows if self._compares else mass

    @property
    def _compares(self) -> bool:
        """With even attention, that is; a segment that scores later ones sees them all."""
        return self.relative and self.direction == "causal"

    def _between(self, segments: NDArray[np.int64], probe: Probe) -> Array:
        return _numbers(probe.mass_between(torch.from_numpy(segments), causal=self.direction == "causal"))

    def _top(self, mass: Array, count: int) -> NDArray[np.int64]:
        """Sorted indices of the ``count`` largest masses still in play; ties go to the earlier segment."""
        order = np.argsort(np.where(self._playing, -mass, np.inf), kind="stable")
        return np.sort(order[:count])


def _numbers(mass: torch.Tensor) -> Array:
    return mass.double().cpu().numpy()


def _edges(
    chosen: NDArray[np.int64], direct: NDArray[np.int64], mass: Array, between: Array, known: NDArray[np.bool_]
) -> tuple[tuple[int, int, float], ...]:
    """How each chosen segment was found: by the query (-1), else over the strongest way from one that was asked."""
    ways = np.where(known[:, None], between, -1.0)
    np.fill_diagonal(ways, -1.0)
    sources = ways.argmax(0)
    found = set(direct.tolist())
    return tuple(
        (-1, to, float(mass[to])) if to in found else (int(sources[to]), to, float(ways[sources[to], to]))
        for to in chosen.tolist()
    )
