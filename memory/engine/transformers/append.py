"""Appending to a working cache: prefill in one pass or in chunks, and greedy decoding."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import nullcontext

import torch

from keep_agent.errors import ConfigError
from memory.engine.attention.function import PromptPass
from memory.engine.attention.kernels import causal_plan
from memory.engine.base import ChunkSchedule, PrefillResult
from memory.engine.trace import PrefillTrace
from memory.engine.transformers.decoder import Decoder, check_finite, check_ids, most_likely
from memory.kv_cache.dense import WorkingCache


class ChunkedPrefill:
    """Prefill of ``token_ids`` (rows,) after ``cache``; ``step`` computes one chunk, ``run`` all of them."""

    def __init__(
        self, decoder: Decoder, cache: WorkingCache, token_ids: torch.Tensor, chunking: ChunkSchedule | None = None
    ) -> None:
        if not token_ids.numel():
            raise ConfigError("there is no new token to compute: give at least one, whose logits are returned")
        check_ids(token_ids, decoder.spec.vocab)
        self._decoder, self._cache, self._ids = decoder, cache, token_ids
        self._chunking = chunking if chunking is not None and token_ids.numel() >= chunking.one_pass else None
        self._done, self._seconds = 0, 0.0
        self.trace = PrefillTrace(cache.next_position + token_ids.numel())

    @property
    def remaining(self) -> int:
        """Number of rows that are not computed yet."""
        return self._ids.numel() - self._done

    def step(self) -> int:
        """Compute the next chunk; returns the number of remaining rows."""
        started = time.perf_counter()
        size = self.remaining if self._chunking is None else self._chunking.size(self._cache.length, self.remaining)
        chunk = self._ids[self._done : self._done + size]
        append(self._decoder, self._cache, chunk, last=size == self.remaining)
        self._done += size
        self._seconds += time.perf_counter() - started
        return self.remaining

    def run(self) -> PrefillResult:
        """Compute all chunks. Raises ModelError for logits that are not finite."""
        while self.step():
            pass
        result = self.result()
        check_finite(result.logits, self._decoder.spec.dtype, self._cache)
        return result

    def result(self) -> PrefillResult:
        """Return the result, with logits of the last row. Raises ConfigError while rows are not computed."""
        if self.remaining:
            raise ConfigError(f"{self.remaining} rows are not computed yet: call `step` or `run` first")
        layers = self._decoder.spec.layers
        self.trace.active_rows, self.trace.recomputed_rows = [self._ids.numel()] * layers, [0] * layers
        self.trace.timings = {"load": 0.0, "prefill": self._seconds}
        return PrefillResult(self._cache.logits, self._cache, self.trace)


def append(decoder: Decoder, cache: WorkingCache, token_ids: torch.Tensor, last: bool = True) -> torch.Tensor | None:
    """Append ``token_ids`` (rows,) to ``cache``; returns logits (1, vocab) of the last row if ``last``."""
    count, start, position = token_ids.numel(), cache.length, cache.next_position
    cache.reserve(count, keep=True)
    places = torch.arange(position, position + count, device=decoder.device)
    positions = torch.cat([cache.positions, places])
    rows = torch.arange(start, start + count, device=decoder.device)
    visible, angles = cache.end_at(start + count), decoder.rope.angles_at(places, position + count)
    plan, keys = causal_plan(rows, positions, decoder.spec.dtype), decoder.spec.rope_keys
    state = PromptPass(cache, slice(start, start + count), visible, angles, plan, keys, cache.raw is not None)
    observer = cache.observer
    with nullcontext() if observer is None else observer.observing(positions, count):
        hidden = decoder.run(decoder.embed(token_ids), state, observer)
    logits = None
    if last:
        logits = decoder.head(hidden[:, -1])
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    cache.extend(places, logits, token_ids)
    return logits


def generate(
    decoder: Decoder, cache: WorkingCache, first_logits: torch.Tensor, max_new_tokens: int, stop_ids: Collection[int]
) -> list[int]:
    """Decode greedily until one of ``stop_ids`` (not returned) or ``max_new_tokens``; tokens stay in ``cache``.

    :raises ModelError: logits are not finite
    """
    if max_new_tokens < 1:
        raise ConfigError(f"max_new_tokens={max_new_tokens} must be at least 1.")
    tokens: list[int] = []
    logits = first_logits
    while len(tokens) < max_new_tokens:
        token = most_likely(logits[-1], decoder.spec.dtype, cache)
        if token in stop_ids:
            break
        tokens.append(token)
        logits = append(decoder, cache, torch.tensor([token], device=decoder.device))
    return tokens
