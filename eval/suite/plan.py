"""Plan of a page of results, read from ``pages/NAME.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

from envs.worlds import GENERATED
from keep_agent.config.literal import as_override
from keep_agent.errors import ConfigError, did_you_mean
from keep_agent.files import parsed_yaml, read_text

KEYS = {"title", "about", "against", "settings", "rows", "commands"}
_FOLDER = files("eval.suite").joinpath("pages")
DATA = "DATA"  # placeholder in overrides: the folder of official data
COMMAND_PREFIXES = ("eval.", "benchmarks.")  # modules whose commands a page may run
RUNS = "RUNS"  # placeholder in commands: the folder of the page's runs


@dataclass(frozen=True, slots=True)
class Setting:
    """World and overrides of one table of a page, the same for all its rows."""

    name: str
    title: str
    world: str
    overrides: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run: a row of a page's table in a setting, with one seed."""

    setting: Setting
    row: str
    seed: int
    overrides: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """Return the run folder, relative to the page's folder."""
        name = self.row if len(self.setting.seeds) == 1 else f"{self.row}-seed{self.seed}"
        return Path(self.setting.name, name)


@dataclass(frozen=True, slots=True)
class Page:
    """A page of ``docs/results``: tables of runs compared with a baseline run, and outputs of commands."""

    name: str
    title: str
    about: str
    against: str  # baseline row
    settings: tuple[Setting, ...]
    rows: Mapping[str, tuple[str, ...]]  # overrides by name
    commands: Mapping[str, tuple[str, ...]]  # arguments of ``python -m`` by title
    data: str | None = None  # folder of official data, if the page needs it

    def runs(self) -> list[PlannedRun]:
        """Return the runs row by row within a setting, so that an unfinished table has complete rows."""
        return [
            PlannedRun(setting, row, seed, (*setting.overrides, *overrides, f"eval.seed={seed}"))
            for setting in self.settings
            for (row, overrides), seed in product(self.rows.items(), setting.seeds)
        ]


def pages() -> list[str]:
    return sorted(path.name.removesuffix(".yaml") for path in _FOLDER.iterdir())


def read_page(name: str, data: str | None) -> Page:
    """Read a packaged page or a YAML file; ``data``: folder with alfred/ and wah/. Raises ConfigError."""
    content = _read_yaml(name)
    rows = content["rows"]
    if isinstance(rows, str):  # names of pages whose rows are included
        rows = {row: value for page in rows.split() for row, value in _read_yaml(page)["rows"].items()}
    rows = {str(row): _overrides(value, data) for row, value in rows.items()}
    against = content.get("against") or next(iter(rows), "")
    if rows and against not in rows:
        raise ConfigError(f"{name} compares with {against!r}, which is not one of its rows: {', '.join(rows)}")
    settings = tuple(_setting(key, value, data) for key, value in content["settings"].items())
    if bool(rows) != bool(settings):
        raise ConfigError(f"{name} has only rows or only settings; a table needs both")
    commands = {title: _overrides(value, data) for title, value in content["commands"].items()}
    for title, words in commands.items():
        if not words or not words[0].startswith(COMMAND_PREFIXES):
            allowed = " and ".join(f"{prefix}NAME" for prefix in COMMAND_PREFIXES)
            raise ConfigError(f"command {title!r} is {' '.join(words)!r}; a page runs only {allowed}")
    data = data if DATA in str(content) else None
    return Page(Path(name).stem, content["title"], content["about"].strip(), against, settings, rows, commands, data)


def _read_yaml(name: str) -> dict[str, Any]:
    path = Path(name) if name.endswith(".yaml") else None
    if path is not None and path.stem in pages():  # it would overwrite the page and its runs
        raise ConfigError(f"{name} has the name of a page of the package; rename it")
    if path is None and name not in pages():
        known, hint = ", ".join(pages()), did_you_mean(name, pages())
        raise ConfigError(f"there is no page {name!r}; choose one of: {known}, or give a .yaml file{hint}")
    content = parsed_yaml(read_text(path or _FOLDER.joinpath(f"{name}.yaml")), name, "correct it")
    if not isinstance(content, dict) or not content.keys() <= KEYS or not {"title", "about"} <= content.keys():
        raise ConfigError(f"{name} must have title and about, and no other keys than {', '.join(sorted(KEYS))}")
    for key, kinds in {"rows": dict | str, "settings": dict, "commands": dict}.items():
        if not isinstance(content.get(key), kinds | None):
            example = f"a mapping by name, as in `{key}: {{name: ...}}`"
            raise ConfigError(f"{name}: {key} must be {example}; got {content[key]!r}")
    return content | {key: content.get(key) or {} for key in ("rows", "settings", "commands")}


def _setting(name: str, content: Any, data: str | None) -> Setting:
    fields = {"world": "alfred", "overrides": (), "seeds": [0], **(content if isinstance(content, Mapping) else {})}
    seeds = fields["seeds"]
    valid = isinstance(seeds, list) and seeds and all(type(seed) is int for seed in seeds)
    if fields.keys() != {"title", "world", "overrides", "seeds"} or fields["world"] not in GENERATED or not valid:
        raise ConfigError(
            f"setting {name} must have a title, and may have world ({', '.join(GENERATED)}), overrides, and seeds, a "
            f"list of whole numbers; got {content!r}"
        )
    return Setting(str(name), fields["title"], fields["world"], _overrides(fields["overrides"], data), tuple(seeds))


def _overrides(content: Any, data: str | None) -> tuple[str, ...]:
    """Split overrides, given as text or as a list of words, and fill in the data folder."""
    words = list(map(str, content)) if isinstance(content, list | tuple) else str(content or "").split()
    if data is None and any(DATA in word for word in words):
        raise ConfigError(f"{' '.join(words)} needs official data: give --data, a folder with alfred/ and wah/")
    for place, word in enumerate(words):
        key, _, value = word.partition("=")
        is_override = DATA in value and not key.startswith("-")  # Hydra needs quotes around the folder
        folder = value.replace(DATA, str(data))
        words[place] = as_override(key, folder) if is_override else word.replace(DATA, str(data))
    return tuple(words)
