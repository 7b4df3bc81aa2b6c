"""Worker that records kvpress's scores and surviving rows; it runs alone in kvpress's environment.

``python kvpress_worker.py FOLDER ...``. A folder contains a model saved by transformers and ``cases.json``: token ids
and a list of cases (see `Case`). The worker adds ``results.json``: one record of `RecordingPress` per case.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from kvpress import BasePress, KeyRerotationPress, ObservedAttentionPress, SnapKVPress, StreamingLLMPress
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

PRESSES = {"snapkv": SnapKVPress, "streaming": StreamingLLMPress, "observed": ObservedAttentionPress}


@dataclass(frozen=True)
class Case:
    """Name of a press, its settings, and the number of rows to keep."""

    press: str
    budget: int
    settings: dict[str, int] = field(default_factory=dict)
    rerotate: bool = False
    attention: str = "sdpa"

    def build(self, rows: int) -> BasePress:
        ratio = 1 - (self.budget + 0.5) / rows  # kvpress keeps int(rows * (1 - ratio)); 0.5 avoids rounding down
        press = PRESSES[self.press](compression_ratio=ratio, **self.settings)
        return KeyRerotationPress(press) if self.rerotate else press


class RecordingPress(BasePress):
    """Press that wraps another one and records, per layer and KV head, scores, surviving rows and their keys."""

    def __init__(self, press: BasePress) -> None:
        self.press = press
        self.scores: list[list[list[float]]] = []
        self.rows: list[list[list[int]]] = []
        self.keys: list[list[list[list[float]]]] = []

    def compress(self, *args: Any) -> tuple[torch.Tensor, torch.Tensor]:
        scorer = getattr(self.press, "press", self.press)
        keys, values = self.press.compress(*args)
        rows = indices(values[0], args[3][0])
        order = rows.argsort(-1)
        self.scores.append(scorer.score(*args)[0].tolist())
        self.rows.append(rows.gather(-1, order).tolist())
        self.keys.append(keys[0].gather(1, order[..., None].expand_as(keys[0])).tolist())
        return keys, values


def indices(survivors: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return the rows (kv_heads, n) of ``survivors`` (kv_heads, n, dim) within ``values`` (kv_heads, rows, dim)."""
    same = (survivors[:, :, None] == values[:, None]).all(-1)
    if not bool((same.sum(-1) == 1).all()):
        raise SystemExit("two rows have the same values; use distinct tokens")
    return same.int().argmax(-1)


@torch.inference_mode()
def run(model: PreTrainedModel, tokens: list[int], case: Case) -> dict[str, Any]:
    """Run one prefill with the case's press."""
    model.set_attn_implementation(case.attention)
    press = RecordingPress(case.build(len(tokens)))
    with press(model):
        model(torch.tensor([tokens]), past_key_values=DynamicCache())
    return {"scores": press.scores, "rows": press.rows, "keys": press.keys}


def main() -> None:
    torch.set_num_threads(1)
    for folder in map(Path, sys.argv[1:]):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        job = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
        results = [run(model, job["tokens"], Case(**case)) for case in job["cases"]]
        (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main()
