"""Known settings: checks of a command line's overrides against the keys and options in ``configs``. Loads no torch."""

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

from keep_agent.config.literal import interpolations, parse_error_message, parse_value
from keep_agent.config.settings import LAUNCHER, PATHS, RAY, check_word
from keep_agent.errors import ConfigError, did_you_mean
from memory.config.choices import new_name
from memory.config.component_names import TARGET

HYDRA_GROUP = "hydra"  # group of Hydra's own settings, which Hydra checks
ARGUMENT_PREFIX = "memory."  # prefix of the keys of component arguments, the only keys that an override may remove
ABSENT = object()  # value of a setting that does not exist


class UnknownSetting(ConfigError):
    """An unknown setting key."""


def check_known(name: str, overrides: Sequence[str], folders: Sequence[str] = ()) -> None:
    """Check that ``configs/NAME.yaml`` has the settings and options of all ``overrides``, also of those with ``+``.

    :param folders: further folders of configs (``--config-dir``)
    :raises UnknownSetting: for an unknown key
    :raises ConfigError: for an unknown option of a config group, or a word that a setting does not accept
    """
    items = [item for item in _parse(overrides) if not _is_hydra_setting(item)]
    path = [f"hydra.searchpath=[{','.join(folders)}]"] if folders else []
    with initialize_config_module("configs", version_base="1.3"):
        groups = ConfigGroups(GlobalHydra.instance().config_loader(), name, path)
        options = [item for item in items if groups.has(item.key_or_group)]
        for item in options:
            groups.check(item)
        keys = [item for item in items if item not in options or item.is_add()]
        choices = tuple(_first_choice(item) for item in options if not item.is_add())
        tree = (_tree if path else _cached_tree)(name, (*path, *choices)) if keys else {}
    with_ray = any(item.key_or_group == LAUNCHER and RAY in _values(item) for item in items)
    custom = tuple(item.key_or_group.removesuffix(TARGET) for item in keys if item.key_or_group.endswith(f".{TARGET}"))
    for item in keys:
        _check_key(item, tree, groups, custom)
        # not checked here: interpolations, which have no value yet, and paths that exist on Ray's nodes only
        for value in _values(item):
            if not any(interpolations(value)) and not (with_ray and item.key_or_group in PATHS):
                check_word(item.key_or_group, parse_value(value))


def _tree(name: str, overrides: Sequence[str]) -> Any:
    return OmegaConf.to_container(compose(name, list(overrides)), resolve=False)


_cached_tree = lru_cache(maxsize=32)(_tree)  # composing takes 0.1 s, and the package's configs are constant


def _parse(overrides: Sequence[str]) -> list[Override]:
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except OverrideParseException as error:
        raise ConfigError(parse_error_message(error.override)) from error


class ConfigGroups:
    def __init__(self, loader: ConfigLoader, name: str, path: Sequence[str]) -> None:
        self._loader, self._name, self._path = loader, name, list(path)
        self._children = cache(loader.list_groups)  # `list_groups` copies all loaded configs at every call

    def has(self, group: str) -> bool:
        parent, _, last = group.rpartition("/")
        return last in self._children(parent)

    def names(self, parent: str = "") -> Iterator[str]:
        for name in self._children(parent):
            group = f"{parent}/{name}".lstrip("/")
            if group != HYDRA_GROUP:
                yield group
                yield from self.names(group)

    def check(self, override: Override) -> None:
        """Raises ConfigError unless ``override`` chooses an existing option of its group."""
        group = override.key_or_group
        options = self._loader.get_group_options(group, config_name=self._name, overrides=self._path)
        public = sorted(option for option in options if not option.startswith("_"))
        choose = f"choose one of: {', '.join(public)}"
        if override.is_delete():
            raise ConfigError(f"{override.input_line} removes required settings; {choose}")
        for option in _values(override):
            if option is None or isinstance(option, list | dict):
                raise ConfigError(f"{override.input_line} does not choose one {group}; {choose}")
            if str(option) not in options:
                hint = new_name(f"{group}={option}") or f"; {choose}{did_you_mean(str(option), public)}"
                raise ConfigError(f"unknown {group} {str(option)!r}{hint}")


def _is_hydra_setting(override: Override) -> bool:
    """Return whether an override is for a setting of Hydra. Raises ConfigError if it replaces all settings of Hydra."""
    if override.key_or_group == HYDRA_GROUP:
        raise ConfigError(f"{override.input_line} replaces all of Hydra's own settings; give {HYDRA_GROUP}.KEY=VALUE")
    return override.key_or_group.replace("/", ".").split(".")[0] == HYDRA_GROUP


def _values(override: Override) -> list[Any]:
    """Return the values of a sweep over a list, or a list of the one value; [] for deletions and other sweeps."""
    value = override.value()
    if isinstance(value, ChoiceSweep):
        return [item.text if isinstance(item, QuotedString) else item for item in value.list]
    return [] if override.is_delete() or override.is_sweep_override() else [value]


def _first_choice(override: Override) -> str:
    values = _values(override) if override.is_sweep_override() else []
    return f"{override.get_key_element()}={values[0]}" if values else override.input_line


def _check_key(override: Override, tree: Any, groups: ConfigGroups, custom: tuple[str, ...]) -> None:
    """Raises ConfigError for an unknown key, and for an override that removes a required setting."""
    line, key = override.input_line, override.key_or_group.replace("[", ".").replace("]", "")
    if groups.has(key):
        key = key.replace("/", ".")
    if key.startswith(custom):
        return  # an argument of a user's own class, which has to check its arguments itself
    node = _find(tree, key.split("."))
    if node is ABSENT:
        raise UnknownSetting(f"{line}: there is no setting {key!r}{new_name(key) or _hint(key, tree, groups)}")
    replaces = override.is_delete() or not all(isinstance(value, Mapping) for value in _values(override))
    if replaces and isinstance(node, Mapping) and not groups.has(override.key_or_group):
        group = key.replace(".", "/")
        remedy = f"did you mean {group}=...?" if groups.has(group) else f"give {key}.NAME=VALUE"
        raise ConfigError(f"{line} replaces a group of settings; {remedy}")
    if override.is_delete() and not key.startswith(ARGUMENT_PREFIX):
        raise ConfigError(f"{line} removes a required setting; give {key}=VALUE")


def _find(tree: Any, parts: Sequence[str]) -> Any:
    """Return the value of a dotted key, or `ABSENT`. Every key below a null setting exists, with the value None."""
    for part in parts:
        if tree is None:
            return None
        if isinstance(tree, list):
            tree = {str(number): item for number, item in enumerate(tree)}
        if not isinstance(tree, Mapping) or part not in tree:
            return ABSENT
        tree = tree[part]
    return tree


def _hint(key: str, tree: Any, groups: ConfigGroups) -> str:
    """Return a hint: a known key with the same last part, else a similar key of the group, else the group's keys."""
    known = [*keys_of(tree), *groups.names()]
    above, _, last = key.rpartition(".")
    elsewhere = [name for name in known if name.rpartition(".")[2] == last]
    beside = _find(tree, above.split("."))
    if elsewhere or not isinstance(beside, Mapping):
        return did_you_mean(key, elsewhere, cutoff=0.0) or did_you_mean(key, known)
    names = [str(name) for name in beside if not str(name).startswith("_")]
    similar = [f"{above}.{name}" for name in get_close_matches(last, names, n=1)]
    return did_you_mean(key, similar, cutoff=0.0) or f"; {above} has {', '.join(names) or 'none'}"


def keys_of(tree: Any, prefix: str = "") -> Iterator[str]:
    """Yield all dotted keys, parents before children."""
    for name, inner in tree.items() if isinstance(tree, Mapping) else ():
        yield f"{prefix}{name}"
        yield from keys_of(inner, f"{prefix}{name}.")
