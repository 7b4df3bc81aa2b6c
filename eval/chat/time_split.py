"""Where the time of an answer goes: attention, MLP, RoPE, top-k, memory operations, as MemArt splits it (its table 4).

Hooks stand around the attention and MLP modules of every layer and around the rotation of stored keys. On CUDA each
part is waited for, so a measured run is slower than others: its parts say how time is divided, not how much there is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from memory.engine.base import Engine
    from memory.prompt.report import Prefill


@dataclass(frozen=True, slots=True)
class Split:
    """Milliseconds of one answer, from the question to its last token, in parts that add up."""

    attention: float = 0.0  # attention modules; the rotation of the rows they compute is in it
    mlp: float = 0.0
    rope: float = 0.0  # stored keys rotated to their positions
    topk: float = 0.0  # what chooses the memory: sentence encoder, choice, plan and look-up; no pass through the layers
    memory: float = 0.0  # groups, transfers into the working cache, harvest
    other: float = 0.0  # embeddings, norms, the head, the choice of rows, and whatever nobody claims

    def to_json(self) -> dict[str, float]:
        return {name: round(value, 3) for name, value in asdict(self).items()}


Span = tuple[float, float]  # from, to: seconds
PARTS = tuple(field.name for field in fields(Split))


class Stopwatch:
    """Counts the time of an engine's parts while ``running``. The engine's transfers have to run inline."""

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
        """The parts of what ran, of which ``prefill`` tells the memory's and ``wall_ms`` the whole."""
        times, attention = prefill.timings, self._ran["attention"]
        loads = [(load.start, load.end) for load in prefill.trace.loads]
        loading = _within(self._ran["rope"], loads)  # rotations that are part of a transfer
        rotating = [span for span in self._ran["rope"] if span not in loading]
        parts = {part: _length(spans) for part, spans in self._ran.items()}
        parts["attention"] -= _length(_within([*loads, *rotating], attention))  # layers that choose load by themselves
        parts["topk"] = times.embed + times.retrieve
        parts["memory"] = times.update + times.load + prefill.after_ms - _length(loading)
        return Split(**parts, other=wall_ms - sum(parts.values()))

    def _now(self) -> float:
        if self._cuda:
            import torch  # here: what reads the splits of a run loads none

            torch.cuda.synchronize()
        return time.perf_counter()

    def _begin(self, *_: Any) -> None:
        self._began = self._now()

    def _ender(self, part: str) -> Callable[..., None]:
        return lambda *_: self._ran[part].append((self._began, self._now()))

    @contextmanager
    def _rotating(self) -> Iterator[None]:
        rope = self._engine.decoder.rope
        plain = rope.rotate_layers

        def timed(*given: Any, **named: Any) -> torch.Tensor:
            start = self._now()
            rotated = plain(*given, **named)
            self._ran["rope"].append((start, self._now()))
            return rotated

        rope.rotate_layers = timed
        try:
            yield
        finally:
            del rope.rotate_layers  # the class's own again


def _length(spans: Sequence[Span]) -> float:
    """ms"""
    return 1e3 * sum(stop - start for start, stop in spans)


def _within(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Those of ``spans`` that lie in one of ``others``."""
    return [(a, b) for a, b in spans if any(start <= a and b <= stop for start, stop in others)]
