"""Names of models: ``model=NAME`` is refused where nothing can have that name. Loads nothing."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from keep_agent.errors import ConfigError, did_you_mean
from memory.engine.shapes import SHAPES

CUSTOM = "custom"  # the file of configs/model that all other names lead to
HUB = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)


def configured_models() -> set[str]:
    """The names of configs/model."""
    return {path.name.removesuffix(".yaml") for path in files("configs").joinpath("model").iterdir()}


def check_model(name: str) -> None:
    """Raises ConfigError unless it is configured, a shape, there on the disk, or written as the hub's names are.

    Whether the hub has it shows when it is loaded.
    """
    known = sorted({*configured_models(), *SHAPES} - {CUSTOM})
    if name in known or HUB.fullmatch(name) or (name and Path(name).exists()):
        return
    raise ConfigError(
        f"model={name} is no configured model ({', '.join(known)}), no file or folder, and not written as a name on "
        f"the hub (OWNER/NAME){did_you_mean(name, known)}"
    )
