"""``model=NAME`` on a command line: any hub name or folder, not only what ``configs/model`` has a file for."""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString, Transformer

from keep_agent.config.literal import as_override, quoted
from keep_agent.config.model_names import CUSTOM, configured_models
from keep_agent.errors import ConfigError

MODEL = "model="


def choose_model(name: str) -> list[str]:
    """The overrides that choose a model by its name, folder or hub name, whatever characters it has."""
    if name in configured_models():
        return [f"{MODEL}{name}"]
    return [f"{MODEL}{CUSTOM}", as_override("model.name", name)]


def expand_model(arguments: Sequence[str]) -> list[str]:
    """Let ``model=NAME`` stand for any hub name or folder, not only for a file in configs/model.

    A comma parts the names of a sweep; a name that has one stands in quotes. Nothing in a name is looked up.
    """
    expanded: list[str] = []
    for argument in arguments:
        names = _names(argument) if argument.startswith(MODEL) else []
        strange = [name for name in names if name not in configured_models()]
        if not strange:
            expanded.append(argument)
        elif len(strange) < len(names):
            raise ConfigError(f"{argument} mixes configured and other models; sweep them in two commands")
        else:
            swept = ",".join(quoted(name) for name in names)
            expanded += [f"{MODEL}{CUSTOM}", f"model.name={swept}"]
    return expanded


def _names(argument: str) -> list[str]:
    """The models of a ``model=...``; Hydra reads those in quotes."""
    text = argument.removeprefix(MODEL)
    if not text.startswith(("'", '"')):
        return text.split(",")
    parsed = OverridesParser.create().parse_override(argument)
    if not parsed.is_sweep_override():
        return [str(parsed.value())]
    values = parsed.sweep_iterator(transformer=Transformer.identity)
    return [value.text if isinstance(value, QuotedString) else str(value) for value in values]
