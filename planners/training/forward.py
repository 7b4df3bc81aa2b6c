"""Forward pass of a training batch, and the exactness of its predictions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch
from transformers import Qwen2ForCausalLM

from planners.training.packed_attention import Batch
from planners.training.packs import IGNORE


@dataclass(frozen=True, slots=True)
class Exactness:
    """Counts by kind of slot: a target line is right when all its tokens are."""

    right: Counter[str] = field(default_factory=Counter)
    total: Counter[str] = field(default_factory=Counter)

    def __add__(self, addend: Exactness) -> Exactness:
        return Exactness(self.right + addend.right, self.total + addend.total)

    def rate(self, kind: str) -> float:
        return self.right[kind] / max(1, self.total[kind])


def forward(
    model: Qwen2ForCausalLM, batch: Batch, precision: torch.dtype = torch.bfloat16
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute (logits of the rows with a target, their labels, flat row numbers)."""
    device = batch.ids.device.type
    shifted = torch.full_like(batch.labels, IGNORE)
    shifted[:, :-1] = batch.labels[:, 1:]
    rows = (shifted.flatten() != IGNORE).nonzero()[:, 0]
    with torch.autocast(device, torch.bfloat16, enabled=precision is torch.bfloat16):
        hidden = model.model(
            input_ids=batch.ids,
            position_ids=batch.positions,
            attention_mask={"full_attention": None},
            use_cache=False,
            pack=batch,
        ).last_hidden_state
        logits = model.lm_head(hidden.flatten(0, 1)[rows])
    return logits.float(), shifted.flatten()[rows], rows


def exactness(logits: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor, batch: Batch) -> Exactness:
    """Count the exact target lines; a run of neighbouring rows is one target line."""
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
