"""kvpress on models and tokens it is given: what it scores and keeps. Runs in kvpress's environment, by itself.

``python kvpress_worker.py FOLDER ...``. A folder holds a model as transformers saves it, and ``cases.json``: token ids
and a list of cases (see `Case`). Beside it comes ``results.json``: a list of what `Noting` saw, one entry per case.
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
    """A press by name, its settings, and how many rows it is to keep."""

    press: str
    budget: int
    settings: dict[str, int] = field(default_factory=dict)
    rerotate: bool = False
    attention: str = "sdpa"

    def build(self, rows: int) -> BasePress:
        ratio = 1 - (self.budget + 0.5) / rows  # kvpress keeps int(rows * (1 - ratio)); a half guards against rounding
        press = PRESSES[self.press](compression_ratio=ratio, **self.settings)
        return KeyRerotationPress(press) if self.rerotate else press


class Noting(BasePress):
    """Lets a press do its work and notes, per layer and KV head, scores, kept rows in order, and their keys."""

    def __init__(self, press: BasePress) -> None:
        self.press = press
        self.scores: list[list[list[float]]] = []
        self.kept: list[list[list[int]]] = []
        self.keys: list[list[list[list[float]]]] = []

    def compress(self, *given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        scorer = getattr(self.press, "press", self.press)
        keys, values = self.press.compress(*given)
        rows = found(values[0], given[3][0])
        order = rows.argsort(-1)
        self.scores.append(scorer.score(*given)[0].tolist())
        self.kept.append(rows.gather(-1, order).tolist())
        self.keys.append(keys[0].gather(1, order[..., None].expand_as(keys[0])).tolist())
        return keys, values


def found(kept: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """(kv_heads, n): which of the ``values`` (kv_heads, rows, head_dim) are the ``kept`` (kv_heads, n, head_dim)."""
    same = (kept[:, :, None] == values[:, None]).all(-1)
    if not bool((same.sum(-1) == 1).all()):
        raise SystemExit("two rows have the same values: use tokens that do not repeat")
    return same.int().argmax(-1)


@torch.inference_mode()
def run(model: PreTrainedModel, tokens: list[int], case: Case) -> dict[str, Any]:
    """One prefill under the case's press."""
    model.set_attn_implementation(case.attention)
    noting = Noting(case.build(len(tokens)))
    with noting(model):
        model(torch.tensor([tokens]), past_key_values=DynamicCache())
    return {"scores": noting.scores, "kept": noting.kept, "keys": noting.keys}


def main() -> None:
    torch.set_num_threads(1)
    for folder in map(Path, sys.argv[1:]):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        given = json.loads((folder / "cases.json").read_text(encoding="utf-8"))
        results = [run(model, given["tokens"], Case(**case)) for case in given["cases"]]
        (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main()
