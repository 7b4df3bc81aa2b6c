"""Forward pass of a training batch of packs (`planners.training.packing`), and a count of exactly predicted lines."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from functools import cache

import torch
from torch.nn import functional as F
from transformers import PreTrainedModel

from memory.engine.attention.kernels import onednn_multiplies
from planners.training.packed_attention import MemoryKV, PackedBatch
from planners.training.packing import IGNORE


@dataclass(frozen=True, slots=True)
class Exactness:
    """Counts of target lines by kind of slot (query after the memory); a line is right if all its tokens are right."""

    right: Counter[str] = field(default_factory=Counter)
    total: Counter[str] = field(default_factory=Counter)

    def __add__(self, addend: Exactness) -> Exactness:
        return Exactness(self.right + addend.right, self.total + addend.total)

    def rate(self, kind: str) -> float:
        return self.right[kind] / max(1, self.total[kind])


def forward(
    model: PreTrainedModel, batch: PackedBatch, precision: torch.dtype = torch.bfloat16
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return logits (n, vocab), labels (n,) and indices (n,) of the n rows with a target in the flattened batch."""
    device = batch.ids.device.type
    shifted = torch.full_like(batch.labels, IGNORE)
    shifted[:, :-1] = batch.labels[:, 1:]
    rows = (shifted.flatten() != IGNORE).nonzero()[:, 0]
    memory = batch.memory if batch.frozen else 0
    with torch.autocast(device, torch.bfloat16, enabled=precision is torch.bfloat16):
        kv: MemoryKV | None = {} if memory else None
        if memory:
            with torch.no_grad():
                last_hidden(model, batch, slice(0, memory), kv)
        hidden = F.pad(last_hidden(model, batch, slice(memory, None), kv), (0, 0, memory, 0))
        logits = model.lm_head(hidden.flatten(0, 1)[rows])
    return logits.float(), shifted.flatten()[rows], rows


def last_hidden(model: PreTrainedModel, batch: PackedBatch, rows: slice, kv: MemoryKV | None) -> torch.Tensor:
    """Return the last hidden states (B, rows, hidden) of some rows of the batch."""
    parts = {"input_ids": batch.ids[:, rows], "position_ids": batch.positions[:, rows]}
    return model.model(**parts, use_cache=False, pack=batch, memory_kv=kv).last_hidden_state


def exactness(logits: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor, batch: PackedBatch) -> Exactness:
    """Count all target lines and the exactly predicted ones. Neighbouring rows with targets form one target line."""
    ok = (logits.argmax(-1) == labels).tolist()
    places = rows.tolist()
    width = (batch.ids.shape[1] - batch.memory) // batch.slots
    result, start = Exactness(), 0
    for i in range(1, len(places) + 1):
        if i < len(places) and places[i] == places[i - 1] + 1:
            continue
        row, column = divmod(places[start], batch.ids.shape[1])
        kind = batch.kinds[row][(column - batch.memory) // width]
        result.total[kind] += 1
        result.right[kind] += all(ok[start:i])
        start = i
    return result


ROWS, WIDTH, ROUNDS = 2048, 192, 5  # shape and repetitions of the timed matrix products


@cache
def faster_precision(device: str) -> torch.dtype:
    """Return bfloat16 on accelerators, float32 on CPUs without bfloat16 instructions, on other CPUs the faster one."""
    if torch.device(device).type != "cpu":
        return torch.bfloat16
    if not onednn_multiplies(torch.bfloat16):
        return torch.float32
    return min((torch.bfloat16, torch.float32), key=_seconds)


def _seconds(dtype: torch.dtype) -> float:
    """Return the seconds of the fastest of a few rounds, after a warm-up round."""
    x, w = torch.ones(ROWS, WIDTH, dtype=dtype), torch.ones(WIDTH, 2 * WIDTH, dtype=dtype)
    times = []
    for _ in range(1 + ROUNDS):
        start = time.perf_counter()
        for _ in range(4):
            x @ w
        times.append(time.perf_counter() - start)
    return min(times[1:])
