"""Run folder of the study of lines that were encoded apart, with one line per encoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from eval.common.out_folder import OutFolder
from eval.isolation.measure import Answer, Deviation

ENCODINGS = "encodings.jsonl"


@dataclass(frozen=True, slots=True)
class EncodingRow:
    """One line of the file `ENCODINGS`: what was measured with one encoding of the lines."""

    index: int
    id: str  # name of the encoding
    keys: list[list[float]]  # deviations by layer and row, as `Deviation` has them
    values: list[list[float]]
    shares: list[list[float]]  # `Attention.shares`, mean over the questions
    ranks: list[list[int]]  # `Attention.ranks` of every question
    answers: list[Answer]

    @property
    def deviation(self) -> Deviation:
        return Deviation(torch.tensor(self.keys), torch.tensor(self.values))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> EncodingRow:
        """Parse the output of `to_json`. Raises KeyError or TypeError for anything else."""
        return cls(**{**row, "answers": [Answer(**answer) for answer in row["answers"]]})


class IsolationFolder(OutFolder):
    """Run folder of the study."""

    lines = ENCODINGS
    result = EncodingRow
