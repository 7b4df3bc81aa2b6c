"""Module timer: time spans of an engine's attention and MLP modules, and of the rotation of stored keys."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from memory.engine.transformers.engine import TransformersEngine

Interval = tuple[float, float]  # start and end in seconds


class ModuleTimer:
    """Timer of an engine's modules inside ``with timer.running()``; the engine needs ``transport="inline"``."""

    def __init__(self, engine: TransformersEngine) -> None:
        self._engine, self._began = engine, 0.0
        self.spans: dict[str, list[Interval]] = {}  # attention, mlp, rope

    @contextmanager
    def running(self) -> Iterator[None]:
        """Hook into the modules, and delete the spans of an earlier run."""
        self.spans = {"attention": [], "mlp": [], "rope": []}
        with ExitStack() as stack:
            for layer in self._engine.decoder.layers:
                for part, module in (("attention", layer.self_attn), ("mlp", layer.mlp)):
                    stack.callback(module.register_forward_pre_hook(self._begin).remove)
                    stack.callback(module.register_forward_hook(self._ender(part)).remove)
            stack.enter_context(self._rotating())
            yield

    def _time(self) -> float:
        if self._engine.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def _begin(self, *_: Any) -> None:
        self._began = self._time()

    def _ender(self, part: str) -> Callable[..., None]:
        return lambda *_: self.spans[part].append((self._began, self._time()))

    @contextmanager
    def _rotating(self) -> Iterator[None]:
        rope = self._engine.decoder.rope
        plain = rope.rotate_layers

        def rotate_and_time(*args: Any, **kwargs: Any) -> torch.Tensor:
            start = self._time()
            keys = plain(*args, **kwargs)
            self.spans["rope"].append((start, self._time()))
            return keys

        rope.rotate_layers = rotate_and_time
        try:
            yield
        finally:
            del rope.rotate_layers  # restores the method of the class
