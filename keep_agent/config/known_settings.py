"""Known settings: the overrides of a command line, compared with the keys and options that the configs have.

Nothing is loaded for it, torch least of all, so a mistyped word is refused at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, lru_cache
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, QuotedString
from hydra.errors import OverrideParseException
from omegaconf import OmegaConf

from keep_agent.config.literal import as_read, looked_up, unreadable
from keep_agent.config.settings import LAUNCHER, PLACES, RAY, check_word
from keep_agent.errors import ConfigError, did_you_mean
from memory.config.choices import new_name
from memory.config.component_names import TARGET

HYDRAS = "hydra"  # its own settings; Hydra checks them itself
ARGUMENTS = "memory."  # those of a component may be left to its class


class UnknownSetting(ConfigError):
    """A key that no setting has."""


def check_known(name: str, overrides: Sequence[str], folders: Sequence[str] = ()) -> None:
    """Refuse what ``configs/NAME.yaml`` has no setting or option for.

    A leading ``+`` or ``++``, with which Hydra adds a key, does not turn it into one that is read.

    :param folders: more folders of configs, as ``--config-dir`` names them
    :raises UnknownSetting: for a key
    :raises ConfigError: for an option of a config group, or for the value of a setting that takes certain words
    """
    given = [one for one in _parsed(overrides) if not _is_hydras(one)]
    path = [f"hydra.searchpath=[{','.join(folders)}]"] if folders else []
    with initialize_config_module("configs", version_base="1.3"):
        groups = Groups(GlobalHydra.instance().config_loader(), name, path)
        chosen = [one for one in given if groups.has(one.key_or_group)]
        for one in chosen:
            groups.check(one)
        keys = [one for one in given if one not in chosen or one.is_add()]
        choices = tuple(_first(one) for one in chosen if not one.is_add())
        tree = (_tree if path else _packaged)(name, (*path, *choices)) if keys else {}
    on_nodes = any(one.key_or_group == LAUNCHER and RAY in _values(one) for one in given)
    opened = [one.key_or_group.removesuffix(f".{TARGET}") for one in keys if one.key_or_group.endswith(TARGET)]
    for one in keys:
        _check_key(one, tree, groups, opened)
        for value in _values(one):
            if any(looked_up(value)) or (on_nodes and one.key_or_group in PLACES):
                continue  # it is checked when it is composed, or on the nodes
            check_word(one.key_or_group, as_read(value))


def _tree(name: str, overrides: Sequence[str]) -> Any:
    """The settings as plain dictionaries, interpolations as they are written."""
    return OmegaConf.to_container(compose(name, list(overrides)), resolve=False)


_packaged = lru_cache(maxsize=32)(_tree)  # composing takes a tenth of a second, and the package's configs stay


def _parsed(overrides: Sequence[str]) -> list[Override]:
    """Raises ConfigError for what Hydra's grammar cannot read."""
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except OverrideParseException as error:
        raise ConfigError(unreadable(error.override)) from error


class Groups:
    """The config groups, such as ``memory/recompute``, and their options."""

    def __init__(self, loader: ConfigLoader, name: str, path: Sequence[str]) -> None:
        self._loader, self._name, self._path = loader, name, list(path)
        self._within = cache(loader.list_groups)  # it copies all configs that are read, every time

    def has(self, group: str) -> bool:
        parent, _, last = group.rpartition("/")
        return last in self._within(parent)

    def names(self, parent: str = "") -> Iterator[str]:
        for name in self._within(parent):
            group = f"{parent}/{name}".lstrip("/")
            if group != HYDRAS:
                yield group
                yield from self.names(group)

    def check(self, override: Override) -> None:
        """Raises ConfigError unless ``override`` chooses an option that its group has."""
        group = override.key_or_group
        options = self._loader.get_group_options(group, config_name=self._name, overrides=self._path)
        public = sorted(one for one in options if not one.startswith("_"))
        choose = f"choose one of: {', '.join(public)}"
        if override.is_delete():
            raise ConfigError(f"{override.input_line} takes away settings that are needed; {choose}")
        for option in _values(override):
            if option is None or isinstance(option, list | dict):
                raise ConfigError(f"{override.input_line} is no choice of one {group}; {choose}")
            if str(option) not in options:
                hint = new_name(f"{group}={option}") or f"; {choose}{did_you_mean(str(option), public)}"
                raise ConfigError(f"unknown {group} {str(option)!r}{hint}")


def _is_hydras(override: Override) -> bool:
    """Whether Hydra reads it. Raises ConfigError where it would replace all that Hydra needs."""
    if override.key_or_group == HYDRAS:
        raise ConfigError(f"{override.input_line} replaces all of Hydra's own settings; give {HYDRAS}.KEY=VALUE")
    return override.key_or_group.replace("/", ".").split(".")[0] == HYDRAS


def _values(override: Override) -> list[Any]:
    """What an override sets its key to: one value, or those of a sweep, as far as they are written out."""
    value = override.value()
    if isinstance(value, ChoiceSweep):
        return [one.text if isinstance(one, QuotedString) else one for one in value.list]
    return [] if override.is_delete() or override.is_sweep_override() else [value]


def _first(override: Override) -> str:
    """The override of a group, of a sweep its first option."""
    values = _values(override)
    if not values or not override.is_sweep_override():
        return override.input_line
    return f"{override.get_key_element()}={values[0]}"


def _check_key(override: Override, tree: Any, groups: Groups, opened: Sequence[str]) -> None:
    key = override.key_or_group.replace("[", ".").replace("]", "")
    if groups.has(key):
        key = key.replace("/", ".")
    if any(key.startswith(f"{node}.") for node in opened):
        return  # a class of the caller's own says itself what it takes
    found, node = _find(tree, key.split("."))
    group = key.replace(".", "/")
    if not found:
        hint = new_name(key) or _hint(key, tree, groups)
        raise UnknownSetting(f"{override.input_line}: there is no setting {key!r}{hint}")
    if isinstance(node, Mapping) and not groups.has(override.key_or_group):
        _check_replaced(override, key, group if groups.has(group) else "")
    if override.is_delete() and not key.startswith(ARGUMENTS):
        raise ConfigError(f"{override.input_line} takes away a setting that is read; give {key}=VALUE")


def _check_replaced(override: Override, key: str, group: str) -> None:
    """Raises ConfigError for an override that leaves one value, or none, where there are settings."""
    if override.is_delete() or not all(isinstance(value, Mapping) for value in _values(override)):
        meant = f"; did you mean {group}=...?" if group else f"; give {key}.NAME=VALUE"
        raise ConfigError(f"{override.input_line} takes the place of settings{meant}")


def _find(tree: Any, parts: Sequence[str]) -> tuple[bool, Any]:
    """Whether there is a setting under a dotted key, and its value; a null may hold any."""
    for part in parts:
        if tree is None:
            return True, None
        if isinstance(tree, list):
            tree = dict(enumerate(tree))
            part = int(part) if part.isdecimal() else part
        if not isinstance(tree, Mapping) or part not in tree:
            return False, None
        tree = tree[part]
    return True, tree


def _hint(key: str, tree: Any, groups: Groups) -> str:
    """The setting or group that was meant: one of that name elsewhere, else one beside it that is written alike.

    Where nothing beside it is, all that is there; where there is no such place, what the whole key is like.
    """
    known = [*keys_of(tree), *groups.names()]
    above, _, last = key.rpartition(".")
    elsewhere = [one for one in known if one.rpartition(".")[2] == last]
    found, beside = _find(tree, above.split("."))
    if elsewhere or not (found and isinstance(beside, Mapping)):
        return did_you_mean(key, elsewhere, cutoff=0.0) or did_you_mean(key, known)
    names = [str(one) for one in beside if not str(one).startswith("_")]
    alike = get_close_matches(last, names, n=1)
    listed = f"; {above} has {', '.join(names) or 'none'}"
    return did_you_mean(key, [f"{above}.{one}" for one in alike], cutoff=0.0) or listed


def keys_of(tree: Any, prefix: str = "") -> Iterator[str]:
    """All dotted keys, those of groups before those in them."""
    for name, inner in tree.items() if isinstance(tree, Mapping) else ():
        yield f"{prefix}{name}"
        yield from keys_of(inner, f"{prefix}{name}.")
