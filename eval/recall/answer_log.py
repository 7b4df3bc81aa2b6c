"""Answers on disk, each as it comes, so that a recall that was cut short goes on where it stopped."""

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
    """A line of `PROBES`."""

    index: int  # over all probes and methods, in the order in which they are asked
    answer: Answer

    @property
    def id(self) -> str:
        cell = self.answer.cell
        return f"{cell.kind}/{cell.cue}/{cell.segments}/{self.answer.trial}/{self.answer.method}"

    def to_json(self) -> dict[str, Any]:
        return {"index": self.index, **asdict(self.answer)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Row:
        """The row of ``to_json``; raises KeyError or TypeError when it is not one."""
        values = {key: value for key, value in row.items() if key != "index"}
        return cls(row["index"], Answer(**values | {"cell": Cell(**row["cell"])}))


class RecallFolder(RunFolder):
    """The folder of a recall: its settings, and its answers so far.

    The settings have three parts: ``options`` of the command line, composed ``configs``, and the ``weights`` asked.
    """

    lines = PROBES
    result = Row

    @classmethod
    def earlier(cls, path: Path, settings: Mapping[str, Any]) -> RecallFolder | None:
        """What was asked under the same ``settings`` (weights left out), or None where nothing was.

        :raises ConfigError: the folder holds other answers than these
        """
        if not (path / CONFIG).exists():
            for name in (PROBES, SUMMARY):
                if (path / name).exists():
                    raise ConfigError(f"{path} holds {name} without {CONFIG}; give --out another folder")
            return None
        saved = read_config(path)
        if saved.keys() != settings.keys() | {"weights"}:
            raise ConfigError(f"{path} holds a run of another command; give --out another folder")
        for part in settings:  # what was typed says more than what came of it
            if found := changed_settings(settings[part], saved[part]):
                shown = ", ".join(f"{key}={change}" for key, change in sorted(found.items()))
                raise ConfigError(f"{path} was asked otherwise: {shown}; ask the same, or give --out another folder")
        return cls.resume(path)


def ask_all(
    probers: Mapping[str, Prober], cells: Sequence[Cell], trials: int, seed: int, known: Collection[int] = ()
) -> Iterator[Row]:
    """The answers to every probe of every cell, probe by probe, but those ``known``; ``probers`` by kind."""
    for number, (cell, trial) in enumerate(product(cells, range(trials))):
        prober = probers[cell.kind]
        first = number * len(prober.methods)
        due = {name: index for index, name in enumerate(prober.methods, first) if index not in known}
        if due:
            for answer in prober.ask(cell, trial, seed, due):
                yield Row(due[answer.method], answer)
