"""Multi-hop importance: KEEP's choice of rows to recompute, and its schedule over the layers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from keep_agent.errors import ConfigError, check_choice
from memory.prompt.layout import Layout
from memory.stages import SCHEDULES, Capabilities, Probe

DIRECTIONS = ("causal", "both")
IMPORTANCES = ("mean", "max")
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Schedule:
    """Share of memory (segments or rows) to recompute at layers 1, 2, ...; layer 0 computes all of it.

    The paper lets the share fall gradually, and gives no formula. ``average`` is the mean share over layers 1 to the
    last; the last layer's share is at least ``last`` x ``average``. ``linear`` and ``cosine`` fall at every layer.
    ``step`` falls once, after the share ``until`` of layers 1 to the last. Before the fall everything is recomputed if
    the average allows it, because attention in early layers is a poor estimate of a segment's importance.
    """

    shape: str = "step"
    average: float = 0.22
    last: float = 0.1
    until: float = 0.18

    def __post_init__(self) -> None:
        check_choice("shape", self.shape, SCHEDULES)
        if not 0 <= self.average <= 1 or not 0 <= self.last <= 1:
            raise ConfigError(f"average={self.average} and last={self.last} must be shares: use 0 to 1")
        if not 0 <= self.until < 1:
            raise ConfigError(f"until={self.until} leaves no layer after the step: use 0 to less than 1")

    def ratios(self, layers: int) -> list[float]:
        """Return the shares at layers 1 to ``layers`` - 1; they never rise, and their mean is ``average``."""
        count = layers - 1
        if count <= 1:
            return [self.average] * count
        low = max(self.last * self.average, 2 * self.average - 1)
        falls = [self._fall(i, count) for i in range(count)]
        mean = sum(falls) / count
        high = low + (self.average - low) / mean
        if high > 1:  # ``step``: layers before the fall recompute everything, later layers share the rest
            high, low = 1.0, (self.average - mean) / (1 - mean)
        return [low + (high - low) * fall for fall in falls]

    def counts(self, layers: int, total: int) -> list[int]:
        """Return how many of ``total`` to recompute at layers 0 .. ``layers`` - 1; at least 1 for a share above 0."""
        return [max(1, round(ratio * total)) if ratio > 0 else 0 for ratio in [1.0, *self.ratios(layers)]]

    def _fall(self, index: int, count: int) -> float:
        """Return the curve of ``shape`` at layer ``index``: 1 at the first of ``count`` layers, 0 at the last."""
        if self.shape == "step":
            return float(index < min(count - 1, max(1, round(count * self.until))))
        x = index / (count - 1)
        return 1 - x if self.shape == "linear" else (1 + math.cos(math.pi * x)) / 2


@dataclass
class MultiHop:
    """KEEP (arXiv 2602.23592, section 4.2): after a layer's attention the most important segments stay active.

    Segments are first ranked by attention from the query. Each hop then ranks them by attention from the segments just
    selected. Hops end when the selection stays the same, or after ``max_hops`` (0: only the query selects). Attention
    is a mean over heads, rows and a segment's tokens. In each hop the query's attention has weight ``query_weight``
    (0 in the paper). With weight 0 a segment that only the query attends to would be dropped.
    ``direction=both`` also scores segments after the selected ones, which causal attention excludes.

    Under a causal mask a plain mean favours the first segments, because all rows can attend to them. ``relative`` (the
    default) averages only over rows that can attend to a segment, and divides a row's attention by the value of evenly
    spread attention. The importance of segment m is then sum_c tokens(c) end(c) mass(c, m) / sum_c tokens(c), over the
    selected segments c not before m. mass(c, m) is the mean attention from c to m, and end(c) the number of prompt rows
    up to the end of c. ``relative=false`` is the paper's mean.

    ``importance=max`` replaces the query's mean attention to a segment by the greatest share, over heads and query
    rows, that the segment has in a row's attention to all segments (times the number of segments, so that 1 is even):
    a few heads look a segment up, and a mean over all heads hides it.

    ``limit`` is the share of a prompt's rows x layers that may be computed. The query, new rows and layer 0 come first;
    the schedule's average is lowered to what remains. So a short prompt, which is mostly query, recomputes a smaller
    share of its memory than a long one. If the limit does not cover layer 0, nothing is recomputed.

    Segments without usable blocks are always active (computed). Exact segments are never active.
    """

    schedule: Schedule = field(default_factory=Schedule)
    max_hops: int = 4
    direction: str = "causal"
    relative: bool = True
    query_weight: float = 0.5
    limit: float | None = None
    importance: str = "mean"
    capabilities: ClassVar[Capabilities] = Capabilities(exact=False, repairs=True, by_mass=True)

    def __post_init__(self) -> None:
        check_choice("direction", self.direction, DIRECTIONS)
        check_choice("importance", self.importance, IMPORTANCES)
        if self.max_hops < 0:
            raise ConfigError(f"max_hops={self.max_hops} is negative: use 0 (the query's own choice) or more")
        if not 0 <= self.query_weight <= 1:
            raise ConfigError(f"query_weight={self.query_weight} is not a share: use 0 to 1")
        if self.limit is not None and not 0 <= self.limit <= 1:
            raise ConfigError(f"limit={self.limit} is not a share: use 0 to 1, or null for no limit")
        self._is_relative = self.relative and self.direction == "causal"  # ``relative`` is ignored with direction=both

    def first(self, layout: Layout, layers: int) -> torch.Tensor:
        reused, segments = layout.reused.cpu().numpy(), layout.segments
        self._layout = layout
        self._weights = np.array([span.stop - span.start for span in segments], np.float64)
        self._ends = np.array([span.stop for span in segments], np.float64)
        self._candidates = np.array([reused[span.start : span.stop].any() for span in segments], bool)
        schedule = self._within_limit(layout, layers)
        if schedule is None:
            self._counts = []
            return layout.fresh.nonzero()[:, 0]
        self._counts = schedule.counts(layers, int(self._candidates.sum()))
        return (~layout.exact).nonzero()[:, 0]

    def narrow(self, layer: int, active: torch.Tensor, probe: Probe) -> torch.Tensor:
        if layer + 1 >= len(self._counts):
            return active
        count = self._counts[layer + 1]
        if count >= int(self._candidates.sum()):
            return active
        selection = self._select(count, probe) if count else np.zeros(0, np.int64)
        self._candidates[:] = False
        self._candidates[selection] = True
        stays = torch.from_numpy(np.append(self._candidates, False)).to(active.device)  # last entry: for -1, no segment
        return active[stays[self._layout.segment_of[active]] | self._layout.fresh[active]]

    def _within_limit(self, layout: Layout, layers: int) -> Schedule | None:
        """Lower the schedule's average to fit ``limit``; None if the fresh rows and layer 0 alone exceed it."""
        new, exact = int(layout.fresh.sum()), int(layout.exact.sum())
        reused = layout.rows - new - exact
        if self.limit is None or layers < 2 or not reused:
            return self.schedule
        room = (self.limit * layout.rows - new) * layers - reused  # layer 0 computes all reused rows
        if room < 0:
            return None
        return replace(self.schedule, average=min(self.schedule.average, room / (reused * (layers - 1))))

    def _select(self, count: int, probe: Probe) -> NDArray[np.int64]:
        """Return the sorted indices of the ``count`` most relevant segments."""
        mass = probe.mass_from_query().double().cpu().numpy()
        direct_mass = self._direct(mass, probe)
        selection = direct = self._top(direct_mass, count)
        between, known = np.zeros((len(mass), len(mass))), np.zeros(len(mass), bool)
        hops, same = 0, False
        while hops < self.max_hops and not same:
            hops += 1
            new = selection[~known[selection]]
            if len(new):
                row_mass = probe.mass_between(torch.from_numpy(new), causal=self.direction == "causal")
                between[new], known[new] = row_mass.double().cpu().numpy(), True
            importance = (1 - self.query_weight) * self._propagate(selection, between)
            following = self._top(importance + self.query_weight * direct_mass, count)
            same, selection = np.array_equal(selection, following), following
        probe.report(hops, _edges(selection, direct, mass, between, known))
        return selection

    def _direct(self, mass: Array, probe: Probe) -> Array:
        """Return the query's importance of each segment; ``mass`` is its mean attention."""
        scale = self._layout.rows if self._is_relative else 1  # if relative, 1 means evenly spread attention
        if self.importance == "max":
            return len(mass) * probe.peak_from_query().double().cpu().numpy() * scale / self._layout.rows
        return mass * scale

    def _propagate(self, sources: NDArray[np.int64], between: Array) -> Array:
        """Return the (segments,) importance propagated from the segments ``sources``."""
        weights = self._weights[sources]
        if not self._is_relative:
            return weights @ between[sources] / weights.sum()
        sees = sources[:, None] >= np.arange(len(between))
        return (weights * self._ends[sources]) @ between[sources] / np.maximum(weights @ sees, 1)

    def _top(self, mass: Array, count: int) -> NDArray[np.int64]:
        """Return the sorted indices of the ``count`` candidates of largest mass; ties go to the earlier segment."""
        order = np.argsort(np.where(self._candidates, -mass, np.inf), kind="stable")
        return np.sort(order[:count])


def _edges(
    selection: NDArray[np.int64], direct: NDArray[np.int64], mass: Array, between: Array, known: NDArray[np.bool_]
) -> tuple[tuple[int, int, float], ...]:
    """Return (source, segment, attention) per selected segment: the query's (-1) if direct, else the strongest one."""
    ways = np.where(known[:, None], between, -1.0)
    np.fill_diagonal(ways, -1.0)
    sources, from_query = ways.argmax(0), set(direct.tolist())
    return tuple(
        (-1, to, float(mass[to])) if to in from_query else (int(sources[to]), to, float(ways[sources[to], to]))
        for to in selection.tolist()
    )
