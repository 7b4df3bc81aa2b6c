"""Run folder of the study of lines that were encoded apart, with one line per memory and encoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from eval.common.out_folder import OutFolder
from eval.isolation.measure import Answer


@dataclass(frozen=True, slots=True)
class EncodingRow:
    """What was measured with one encoding of one memory's lines."""

    index: int
    memory: int
    encoding: str
    keys: list[list[float]]  # deviations by layer and row, see `Deviation`
    values: list[list[float]]
    shares: list[list[float]]  # `Attention.shares`, mean over the questions
    ranks: list[tuple[int, int]]  # `Attention.ranks` of every question
    answers: list[Answer]

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
