"""Answer log of a recall run: each answer is appended to disk at once, so that an interrupted run can resume."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.common.resume import changed_settings
from eval.recall.cells import Answer, Cell
from keep_agent.errors import ConfigError
from keep_agent.rollout.run_folder import CONFIG, SUMMARY, RunFolder, read_config

if TYPE_CHECKING:
    from eval.recall.prober import Prober

PROBES = "probes.jsonl"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the file `PROBES`."""

    index: int  # position among all probes and methods, in the order of evaluation
    answer: Answer

    @property
    def id(self) -> str:
        cell = self.answer.cell
        return f"{cell.kind}/{cell.cue}/{cell.segments}/{self.answer.trial}/{self.answer.method}"

    def to_json(self) -> dict[str, Any]:
        return {"index": self.index, **asdict(self.answer)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Row:
        """Parse the output of `to_json`. Raises KeyError or TypeError for anything else."""
        values = {key: value for key, value in row.items() if key != "index"}
        return cls(row["index"], Answer(**values | {"cell": Cell(**row["cell"])}))


class RecallFolder(RunFolder):
    """Run folder of a recall run: settings and answers.

    The settings have three parts: ``options`` of the command line, composed ``configs``, and the model's ``weights``.
    """

    lines = PROBES
    result = Row

    @classmethod
    def find(cls, path: Path, settings: Mapping[str, Any]) -> RecallFolder | None:
        """Open the run at ``path`` if it has the same ``settings`` (weights excluded); return None if there is no run.

        :raises ConfigError: the folder belongs to another run
        """
        if not (path / CONFIG).exists():
            for name in (PROBES, SUMMARY):
                if (path / name).exists():
                    raise ConfigError(f"{path} holds {name} without {CONFIG}; give --out another folder")
            return None
        saved = read_config(path)
        if saved.keys() != settings.keys() | {"weights"}:
            raise ConfigError(f"{path} holds a run of another command; give --out another folder")
        for part in settings:  # options first: they explain more than the configs composed from them
            if changed := changed_settings(settings[part], saved[part]):
                text = ", ".join(f"{key}={change}" for key, change in sorted(changed.items()))
                raise ConfigError(f"{path} has other settings: {text}; use the same, or give --out another folder")
        return cls.resume(path)


def ask_all(
    probers: Mapping[str, Prober], cells: Sequence[Cell], trials: int, seed: int, known: Collection[int] = ()
) -> Iterator[Row]:
    """Yield the answers to every probe of every cell, except those at the indices ``known``; ``probers`` by kind."""
    for number, (cell, trial) in enumerate(product(cells, range(trials))):
        prober = probers[cell.kind]
        first = number * len(prober.methods)
        due = {name: index for index, name in enumerate(prober.methods, first) if index not in known}
        if due:
            for answer in prober.ask(cell, trial, seed, due):
                yield Row(due[answer.method], answer)
