"""Model names: ``model=NAME`` on a command line; NAME is in ``configs/model``, a hub name, a file or a folder."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString, Transformer

from keep_agent.config.literal import as_override, quote
from keep_agent.errors import ConfigError, ModelError, did_you_mean
from keep_agent.options import HUB_NAME
from memory.engine.models.model_path import check_model_path
from memory.engine.models.model_shapes import SHAPES

ENCODERS = ("auto", "hashed", "hashed_ngrams", "minilm", "all-minilm-l6-v2", "mpnet", "all-mpnet-base-v2")
CUSTOM = "custom"  # file in configs/model for all models without a file of their own
MODEL = "model="


def configured_models() -> set[str]:
    return {path.name.removesuffix(".yaml") for path in files("configs").joinpath("model").iterdir()}


def check_model(name: str) -> None:
    """Raise ConfigError unless a name is in ``configs/model`` or `SHAPES`, a path, or written as a hub name."""
    known = sorted({*configured_models(), *SHAPES} - {CUSTOM})
    if name in known:
        return
    if name and Path(name).exists():
        try:
            check_model_path(name)
        except ModelError as error:
            raise ConfigError(f"model={name} does not work: {error}") from error
    elif not HUB_NAME.fullmatch(name):
        raise ConfigError(
            f"model={name} is not a configured model ({', '.join(known)}), not a file or folder, and not written as a "
            f"name on the hub (OWNER/NAME){did_you_mean(name, known)}"
        )


def check_encoder(name: str) -> None:
    """Raise ConfigError unless a name is one of `ENCODERS`, an existing path, or written as a hub name."""
    if name.lower() in ENCODERS or HUB_NAME.fullmatch(name) or (name and Path(name).exists()):
        return
    raise ConfigError(
        f"prompt.encoder={name} is none of {', '.join(ENCODERS)}, not a file or folder, and not written as a name on "
        f"the hub (OWNER/NAME){did_you_mean(name, ENCODERS)}"
    )


def choose_model(name: str) -> list[str]:
    """Return the overrides that choose a model by its name, folder or hub name; special characters are quoted."""
    if name in configured_models():
        return [f"{MODEL}{name}"]
    return [f"{MODEL}{CUSTOM}", as_override("model.name", name)]


def expand_model(arguments: Sequence[str]) -> list[str]:
    """Replace each ``model=NAME`` whose NAME is not in ``configs/model`` by overrides. ``NAME,NAME`` is a sweep."""
    expanded: list[str] = []
    for argument in arguments:
        names = _names(argument) if argument.startswith(MODEL) else []
        custom = [name for name in names if name not in configured_models()]
        if not custom:
            expanded.append(argument)
        elif len(custom) < len(names):
            raise ConfigError(f"{argument} mixes models in configs/model with others; sweep them in two commands")
        else:
            expanded += [f"{MODEL}{CUSTOM}", f"model.name={','.join(map(quote, names))}"]
    return expanded


def _names(argument: str) -> list[str]:
    text = argument.removeprefix(MODEL)
    if not text.startswith(("'", '"')):
        return text.split(",")
    override = OverridesParser.create().parse_override(argument)
    if not override.is_sweep_override():
        return [str(override.value())]
    values = override.sweep_iterator(transformer=Transformer.identity)
    return [value.text if isinstance(value, QuotedString) else str(value) for value in values]
