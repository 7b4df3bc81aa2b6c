"""Small works (prefills to simulate): the layers at which segments are dropped, and the times of a layer's pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st

from eval.loading.prompt import SyntheticPrompt
from eval.loading.simulate import Link
from eval.loading.workload import BEFORE, CHOICE_POINTS, LayerWork, PieceTimes
from memory.loading.layer_balanced import LayerBalanced
from memory.loading.next_layer import NextLayer
from memory.loading.serial import Serial
from memory.prompt.layout import Layout, Transfer
from memory.stages import Loading

STAGES = (Serial, NextLayer, LayerBalanced)


def work(
    drops: Sequence[int], attention: Sequence[float], mlp: Sequence[float], importance: Sequence[float] | None = None,
    tokens: int = 1, choice_point: str = BEFORE, together: int = 1,
) -> LayerWork:  # fmt: skip
    """Make a work with one query row and one byte per row and layer; segment i is dropped at layer ``drops[i]``."""
    prompt = SyntheticPrompt(len(drops), tokens, 1, together)
    last = torch.tensor([*(drop for drop in drops for _ in range(tokens)), len(attention)])
    active = tuple((last > layer).nonzero()[:, 0] for layer in range(len(attention)))
    choices = [0.0] * len(attention) if importance is None else importance
    return LayerWork(prompt.layout(), active, PieceTimes(tuple(attention), tuple(choices), tuple(mlp)), 1, choice_point)


@st.composite
def works(draw: st.DrawFn, tokens: int = 3, together: int = 1) -> LayerWork:
    """Draw works of two to six layers, with segments of up to ``tokens`` rows dropped at any layer or never.

    Units of up to ``together`` segments have gaps: active rows that are loaded with the dropped rows around them.
    """
    layers = draw(st.integers(2, 6))
    seconds = st.lists(st.sampled_from((0.0, 0.25, 1.0, 2.5)), min_size=layers, max_size=layers)
    drops = draw(st.lists(st.integers(0, layers), min_size=1, max_size=6))
    pieces = draw(seconds), draw(seconds), [*draw(seconds)[:-1], 0.0]
    size, choice_point = draw(st.integers(1, tokens)), draw(st.sampled_from(CHOICE_POINTS))
    return work(drops, *pieces, tokens=size, choice_point=choice_point, together=draw(st.integers(1, together)))


def links(free: bool) -> st.SearchStrategy[Link]:
    """Draw links of about a byte per second; ``free``: without latencies."""
    extra = st.just(0.0) if free else st.sampled_from((0.0, 0.0625, 0.5))
    return st.builds(Link, st.just("link"), st.sampled_from((0.25, 1.0, 4.0)), extra, extra)


@dataclass
class RecordingLoading:
    """Loading stage that records its transfers."""

    stage: Loading
    transfers: list[Transfer] = field(default_factory=list)

    @property
    def overlaps(self) -> bool:
        return self.stage.overlaps

    def schedule(self, layout: Layout, layer: int, active: torch.Tensor, layers: int) -> list[Transfer]:
        transfers = self.stage.schedule(layout, layer, active, layers)
        self.transfers += transfers
        return transfers
