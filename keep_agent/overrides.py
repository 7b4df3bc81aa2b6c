"""``model=NAME`` on a command line: any hub name or folder, not only what ``configs/model`` has a file for."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from keep_agent.errors import ConfigError

MODEL = "model="
CUSTOM_MODEL = "custom"


def expand_model(arguments: Sequence[str]) -> list[str]:
    """Let ``model=NAME`` stand for any hub name or folder, not only for a file in configs/model."""
    known = {path.name.removesuffix(".yaml") for path in files("configs").joinpath("model").iterdir()}
    expanded: list[str] = []
    for argument in arguments:
        names = argument.removeprefix(MODEL).split(",") if argument.startswith(MODEL) else []
        strange = [name for name in names if name not in known]
        if not strange:
            expanded.append(argument)
        elif len(strange) < len(names):
            raise ConfigError(f"{argument} mixes configured and other models; sweep them in two commands")
        else:
            quoted = ",".join(f"'{name}'" for name in names)
            expanded += [f"{MODEL}{CUSTOM_MODEL}", f"model.name={quoted}"]
    return expanded
