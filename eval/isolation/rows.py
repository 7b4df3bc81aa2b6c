"""Run folder of the study of lines that were encoded apart, with one line per memory and encoding."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import torch

from eval.common.out_folder import OutFolder
from eval.isolation.measure import Answer, Isolation
from eval.isolation.texts import LineQuestion


@dataclass(frozen=True, slots=True)
class EncodingRow:
    """Measurements of one encoding of one memory's lines."""

    index: int
    memory: int
    encoding: str
    keys: list[list[float]]  # deviations by layer and row, see `Deviation`
    values: list[list[float]]
    shares: list[list[float]]  # `Attention.shares`, mean over the questions
    ranks: list[tuple[int, int]]  # `Attention.ranks` of every question
    answers: list[Answer]

    @classmethod
    def measure(
        cls, index: int, memory: int, encoding: str, lines: Isolation, questions: Sequence[LineQuestion],
        repairs: Sequence[str], rng: random.Random,
    ) -> EncodingRow:  # fmt: skip
        """Encode the lines and measure them; the first quarter, which has few lines before it, has no deviation."""
        blocks = lines.encode(encoding)
        answers, attentions = zip(*lines.answers(blocks, questions, repairs, rng), strict=True)
        deviation = lines.deviation(blocks, skipped=len(blocks) // 4)
        shares = torch.stack([attention.shares for attention in attentions]).mean(0)
        return cls(
            index, memory, encoding, deviation.keys.tolist(), deviation.values.tolist(), shares.tolist(),
            [attention.ranks for attention in attentions], list(chain.from_iterable(answers)),
        )  # fmt: skip

    @property
    def id(self) -> str:
        return f"{self.memory}/{self.encoding}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> EncodingRow:
        """Parse the output of `to_json`. Raises KeyError or TypeError for anything else."""
        return cls(**{**row, "answers": [Answer(**answer) for answer in row["answers"]]})


class IsolationFolder(OutFolder):
    """Run folder of the study."""

    lines = "encodings.jsonl"
    result = EncodingRow
