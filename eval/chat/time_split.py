"""Latency split of an answer: attention, MLP, RoPE, top-k and memory operations, as in MemArt's table 4.

Hooks measure the attention and MLP modules of every layer and the rotation of stored keys. On CUDA every part is
synchronised, which slows the run: the parts show shares of the time, not the time of an unmeasured run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from memory.engine.base import Engine
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


class Stopwatch:
    """Stopwatch of an engine's parts, active within ``running``. The engine's transfers must run inline."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._cuda = engine.device.type == "cuda"
        self._ran: dict[str, list[Span]] = {}
        self._began = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        self._ran = {"attention": [], "mlp": [], "rope": []}
        with ExitStack() as stack:
            for layer in self._engine.decoder.layers:
                for part, module in (("attention", layer.self_attn), ("mlp", layer.mlp)):
                    stack.callback(module.register_forward_pre_hook(self._begin).remove)
                    stack.callback(module.register_forward_hook(self._ender(part)).remove)
            stack.enter_context(self._rotating())
            yield

    def split(self, prefill: Prefill, wall_ms: float) -> Split:
        """Return the parts of the latest run; ``prefill`` supplies the memory's times and ``wall_ms`` the total."""
        times, attention = prefill.timings, self._ran["attention"]
        loads = [(load.start, load.end) for load in prefill.trace.loads]
        loading = _within(self._ran["rope"], loads)  # rotations that are part of a transfer
        rotating = [span for span in self._ran["rope"] if span not in loading]
        parts = {part: _length(spans) for part, spans in self._ran.items()}
        parts["attention"] -= _length(_within([*loads, *rotating], attention))  # per-layer retrieval loads in attention
        parts["topk"] = times.embed + times.retrieve
        parts["memory"] = times.update + times.load + prefill.after_ms - _length(loading)
        return Split(**parts, remainder=wall_ms - sum(parts.values()))

    def _time(self) -> float:
        if self._cuda:
            import torch  # lazy: reading the splits of a finished run must not load torch

            torch.cuda.synchronize()
        return time.perf_counter()

    def _begin(self, *_: Any) -> None:
        self._began = self._time()

    def _ender(self, part: str) -> Callable[..., None]:
        return lambda *_: self._ran[part].append((self._began, self._time()))

    @contextmanager
    def _rotating(self) -> Iterator[None]:
        rope = self._engine.decoder.rope
        plain = rope.rotate_layers

        def rotate_and_time(*args: Any, **kwargs: Any) -> torch.Tensor:
            start = self._time()
            keys = plain(*args, **kwargs)
            self._ran["rope"].append((start, self._time()))
            return keys

        rope.rotate_layers = rotate_and_time
        try:
            yield
        finally:
            del rope.rotate_layers  # restores the method of the class


def _length(spans: Sequence[Span]) -> float:
    """Return the total length in ms."""
    return 1e3 * sum(stop - start for start, stop in spans)


def _within(spans: Sequence[Span], limits: Sequence[Span]) -> list[Span]:
    """Return the ``spans`` that lie within one of ``limits``."""
    return [(a, b) for a, b in spans if any(start <= a and b <= stop for start, stop in limits)]
