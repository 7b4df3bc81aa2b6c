"""Latency split of an answer: attention, MLP, RoPE, top-k and memory operations, as in MemArt's table 4.

`ModuleTimer` measures the layers' modules. On CUDA it synchronises every part, which slows the run: the parts show
shares of the time, not the time of an unmeasured run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memory.engine.transformers.module_timer import ModuleTimer
    from memory.prompt.report import Prefill


@dataclass(frozen=True, slots=True)
class Split:
    """Milliseconds of one answer, from the question to its last token; the parts add up."""

    attention: float = 0.0  # attention modules, including the rotation of newly computed rows
    mlp: float = 0.0
    rope: float = 0.0  # rotation of stored keys to their positions
    topk: float = 0.0  # retrieval outside the layers: sentence encoder, selection, plan and look-up
    memory: float = 0.0  # groups, transfers into the working cache, harvest
    remainder: float = 0.0  # embeddings, norms, head, row selection and everything else; "other" in files

    def to_json(self) -> dict[str, float]:
        return {part: round(getattr(self, name), 3) for part, name in PARTS.items()}

    @classmethod
    def from_json(cls, row: Mapping[str, float]) -> Split:
        return cls(**{PARTS[part]: value for part, value in row.items()})


Span = tuple[float, float]  # start and end in seconds
PARTS = {field.name: field.name for field in fields(Split)[:-1]} | {"other": "remainder"}  # names in files and tables


def split_time(timer: ModuleTimer, prefill: Prefill, wall_ms: float) -> Split:
    """Return the parts of the latest run; ``prefill`` supplies the memory's times and ``wall_ms`` the total."""
    times, spans = prefill.timings, timer.spans
    loads = [(load.start, load.end) for load in prefill.trace.loads]
    loading = _within(spans["rope"], loads)  # rotations that are part of a transfer
    rotating = [span for span in spans["rope"] if span not in loading]
    parts = {part: _length(part_spans) for part, part_spans in spans.items()}
    inside = _within([*loads, *rotating], spans["attention"])  # layers that choose their blocks load during attention
    parts["attention"] -= _length(inside)
    parts["topk"] = times.embed + times.retrieve
    parts["memory"] = times.update + times.load + prefill.after_ms - _length(loading)
    return Split(**parts, remainder=wall_ms - sum(parts.values()))


def _length(spans: Sequence[Span]) -> float:
    """Return the total length in ms."""
    return 1e3 * sum(stop - start for start, stop in spans)


def _within(spans: Sequence[Span], limits: Sequence[Span]) -> list[Span]:
    """Return the ``spans`` that lie within one of ``limits``."""
    return [(a, b) for a, b in spans if any(start <= a and b <= stop for start, stop in limits)]
