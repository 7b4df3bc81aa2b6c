"""Parts of a page of results, from ``pages/NAME.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

from envs.worlds import WORLDS
from keep_agent.config.literal import as_override
from keep_agent.errors import ConfigError, did_you_mean
from keep_agent.files import parsed_yaml, read_text

KEYS = {"title", "about", "against", "settings", "rows", "commands"}
_FOLDER = files("eval.suite").joinpath("pages")
DATA = "DATA"  # in overrides: the folder of official data
COMMAND_PREFIXES = ("eval.", "benchmarks.")  # modules whose commands a page may run
RUNS = "RUNS"  # in commands: the folder of the page's runs


@dataclass(frozen=True, slots=True)
class Setting:
    """Where all rows of a table play: a world, and overrides of its command."""

    name: str
    title: str
    world: str
    overrides: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: a row in a setting, with one of its seeds."""

    setting: Setting
    row: str
    seed: int
    overrides: tuple[str, ...]

    @property
    def place(self) -> Path:
        """Its run folder, within the page's."""
        name = self.row if len(self.setting.seeds) == 1 else f"{self.row}-seed{self.seed}"
        return Path(self.setting.name, name)


@dataclass(frozen=True, slots=True)
class Page:
    """A page of ``docs/results``: tables of runs beside one of them, and what commands print."""

    name: str
    title: str
    about: str
    against: str  # the row that the others are compared with
    settings: tuple[Setting, ...]
    rows: Mapping[str, tuple[str, ...]]  # overrides by name
    commands: Mapping[str, tuple[str, ...]]  # arguments of ``python -m`` by title
    data: str | None = None  # the folder of official data, if the page needs any

    def cells(self) -> list[Cell]:
        """Row by row within a setting, so that an unfinished table has rows to compare."""
        return [
            Cell(setting, row, seed, (*setting.overrides, *overrides, f"eval.seed={seed}"))
            for setting in self.settings
            for (row, overrides), seed in product(self.rows.items(), setting.seeds)
        ]


def pages() -> list[str]:
    """The pages there are."""
    return sorted(path.name.removesuffix(".yaml") for path in _FOLDER.iterdir())


def read_page(name: str, data: str | None) -> Page:
    """A page by name, or one that a YAML file describes; ``data`` holds alfred/ and wah/.

    Raises ConfigError for a page that is not there, keys that no page has, and data that is needed and not given.
    """
    told = _read_yaml(name)
    rows = told["rows"]
    if isinstance(rows, str):  # those of the pages so called
        rows = {row: found for page in rows.split() for row, found in _read_yaml(page)["rows"].items()}
    rows = {str(row): _overrides(found, data) for row, found in rows.items()}
    against = told.get("against") or next(iter(rows), "")
    if rows and against not in rows:
        raise ConfigError(f"{name} compares with {against!r}, which is no row of it: {', '.join(rows)}")
    settings = tuple(_setting(key, found, data) for key, found in told["settings"].items())
    if bool(rows) != bool(settings):
        raise ConfigError(f"{name} has rows or settings alone; a table needs both")
    commands = {title: _command(title, found, data) for title, found in told["commands"].items()}
    data = data if DATA in str(told) else None
    return Page(Path(name).stem, told["title"], told["about"].strip(), against, settings, rows, commands, data)


def _read_yaml(name: str) -> dict[str, Any]:
    path = Path(name) if name.endswith(".yaml") else None
    if path is not None and path.stem in pages():  # runs and page would take the place of its own
        raise ConfigError(f"{name} is called as a page of the package; rename it")
    if path is None and name not in pages():
        known, hint = ", ".join(pages()), did_you_mean(name, pages())
        raise ConfigError(f"there is no page {name!r}; choose one of: {known}, or give a .yaml file{hint}")
    told = parsed_yaml(read_text(path or _FOLDER.joinpath(f"{name}.yaml")), name, "mend it")
    if not isinstance(told, dict) or not told.keys() <= KEYS or not {"title", "about"} <= told.keys():
        raise ConfigError(f"{name} must have a title and what it is about, and no keys but {', '.join(sorted(KEYS))}")
    for key, kinds in {"rows": (dict, str), "settings": (dict,), "commands": (dict,)}.items():
        if told.get(key) is not None and not isinstance(told[key], kinds):
            raise ConfigError(f"{name}: {key} must give each a name, as in `{key}: {{name: ...}}`; got {told[key]!r}")
    return told | {key: told.get(key) or {} for key in ("rows", "settings", "commands")}


def _setting(name: str, told: Mapping[str, Any], data: str | None) -> Setting:
    keys = {"title", "world", "overrides", "seeds"}
    if (
        not isinstance(told, Mapping)
        or not {"title"} <= told.keys() <= keys
        or told.get("world", "alfred") not in WORLDS
        or not _is_seed_list(told.get("seeds", [0]))
    ):
        raise ConfigError(
            f"setting {name} has a title, and may have world ({', '.join(WORLDS)}), overrides, and seeds, a list of "
            f"whole numbers; got {told!r}"
        )
    seeds = tuple(told.get("seeds", (0,)))
    overrides = _overrides(told.get("overrides", ()), data)
    return Setting(str(name), told["title"], told.get("world", "alfred"), overrides, seeds)


def _command(title: str, told: Any, data: str | None) -> tuple[str, ...]:
    """The words of a command of this project; a page starts nothing else."""
    words = _overrides(told, data)
    if not words or not words[0].startswith(COMMAND_PREFIXES):
        shown = " ".join(words)
        raise ConfigError(f"command {title!r} is {shown!r}; a page runs {' and '.join(f'{own}NAME' for own in OWN)}")
    return words


def _is_seed_list(told: Any) -> bool:
    return isinstance(told, list) and bool(told) and all(type(seed) is int for seed in told)


def _overrides(told: Any, data: str | None) -> tuple[str, ...]:
    """Of a text or a list of words; what is left empty is none."""
    words = tuple(map(str, told)) if isinstance(told, list | tuple) else str(told or "").split()
    if data is None and any(DATA in word for word in words):
        raise ConfigError(f"{' '.join(words)} needs official data: give --data, a folder with alfred/ and wah/")
    return tuple(_with_data_folder(word, str(data)) for word in words)


def _with_data_folder(word: str, data: str) -> str:
    """A word with the folder of official data where it is; in an override as Hydra writes text."""
    key, is_override, value = word.partition("=")
    if DATA in value and is_override and not key.startswith("-"):
        return as_override(key, value.replace(DATA, data))
    return word.replace(DATA, data)
