"""``model=NAME`` on a command line: any hub name or folder, not only what ``configs/model`` has a file for."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString, Transformer

from keep_agent.errors import ConfigError
from keep_agent.literal import as_override, quoted

MODEL = "model="
CUSTOM_MODEL = "custom"


def choose_agent(planner: str, model: str, overrides: Sequence[str]) -> list[str]:
    """All overrides of an agent. Raises ConfigError for what is no text, or a text where a list should be."""
    for name, value in (("planner", planner), ("model", model)):
        if not isinstance(value, str):
            raise ConfigError(f"{name}={value!r:.80}: give its name")
    several = isinstance(overrides, Sequence) and not isinstance(overrides, str)
    if not several or not all(isinstance(one, str) for one in overrides):
        raise ConfigError(f"overrides={overrides!r:.80}: give a list of KEY=VALUE, such as ['prompt.style=linked']")
    return [f"planner={planner}", *choose_model(model), *overrides]


def choose_model(name: str) -> list[str]:
    """The overrides that choose a model by its name, folder or hub name, whatever characters it has."""
    if name in _configured():
        return [f"{MODEL}{name}"]
    return [f"{MODEL}{CUSTOM_MODEL}", as_override("model.name", name)]


def expand_model(arguments: Sequence[str]) -> list[str]:
    """Let ``model=NAME`` stand for any hub name or folder, not only for a file in configs/model.

    A comma parts the names of a sweep; a name that has one stands in quotes. Nothing in a name is looked up.
    """
    expanded: list[str] = []
    for argument in arguments:
        names = _names(argument) if argument.startswith(MODEL) else []
        strange = [name for name in names if name not in _configured()]
        if not strange:
            expanded.append(argument)
        elif len(strange) < len(names):
            raise ConfigError(f"{argument} mixes configured and other models; sweep them in two commands")
        else:
            swept = ",".join(quoted(name) for name in names)
            expanded += [f"{MODEL}{CUSTOM_MODEL}", f"model.name={swept}"]
    return expanded


def _configured() -> set[str]:
    """The names of configs/model."""
    return {path.name.removesuffix(".yaml") for path in files("configs").joinpath("model").iterdir()}


def _names(argument: str) -> list[str]:
    """The models of a ``model=...``; Hydra reads those in quotes."""
    text = argument.removeprefix(MODEL)
    if not text.startswith(("'", '"')):
        return text.split(",")
    parsed = OverridesParser.create().parse_override(argument)
    if not parsed.is_sweep_override():
        return [str(parsed.value())]
    found = parsed.sweep_iterator(transformer=Transformer.identity)
    return [one.text if isinstance(one, QuotedString) else str(one) for one in found]
