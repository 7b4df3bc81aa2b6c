"""Names of models: ``model=NAME`` is refused where nothing can have that name. Loads nothing."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from keep_agent.errors import ConfigError, ModelError, did_you_mean
from keep_agent.options import HUB
from memory.engine.models.model_path import check_place
from memory.engine.models.model_shapes import SHAPES

ENCODERS = ("auto", "hashed", "hashed_ngrams", "minilm", "all-minilm-l6-v2", "mpnet", "all-mpnet-base-v2")
CUSTOM = "custom"  # the file of configs/model that all other names lead to


def configured_models() -> set[str]:
    """The names of configs/model."""
    return {path.name.removesuffix(".yaml") for path in files("configs").joinpath("model").iterdir()}


def check_model(name: str) -> None:
    """Raises ConfigError unless it is configured, a shape, a model on the disk, or written as the hub's names are.

    Whether the hub has it shows when it is loaded.
    """
    known = sorted({*configured_models(), *SHAPES} - {CUSTOM})
    if name in known:
        return
    if name and Path(name).exists():
        _check_there(name)
        return
    if HUB.fullmatch(name):
        return
    raise ConfigError(
        f"model={name} is no configured model ({', '.join(known)}), no file or folder, and not written as a name on "
        f"the hub (OWNER/NAME){did_you_mean(name, known)}"
    )


def _check_there(name: str) -> None:
    try:
        check_place(name)
    except ModelError as error:
        raise ConfigError(f"model={name} does not work: {error}") from error


def check_encoder(name: str) -> None:
    """Raises ConfigError unless it is one of ours, there on the disk, or written as the hub's names are."""
    if name.lower() in ENCODERS or HUB.fullmatch(name) or (name and Path(name).exists()):
        return
    raise ConfigError(
        f"prompt.encoder={name} is none of {', '.join(ENCODERS)}, no folder, and not written as a name on the hub "
        f"(OWNER/NAME){did_you_mean(name, ENCODERS)}"
    )
