"""Option checks of commands; only `usable_device` loads torch. Any module may import this one."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping
from pathlib import Path

from keep_agent.errors import ConfigError, did_you_mean

DEVICES = ("auto", "cpu", "cuda", "hip", "hpu", "mps", "mtia", "npu", "xla", "xpu")  # auto, or a device type of torch
HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)  # model names on the Hugging Face hub: OWNER/NAME
NO_LIMIT = 2**31 - 1  # upper bound of options that need no limit of their own
SEEDS = (0, 2**63 - 1)
THREADS = (0, 4096)


def check_ranges(options: argparse.Namespace, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Raises ConfigError if an option's number, or one in its list of numbers, is outside its range in ``ranges``."""
    for name, (least, most) in ranges.items():
        values = getattr(options, name)
        for value in values if isinstance(values, list) else [values]:
            if not least <= value <= most:  # NaN fails this comparison, too
                option = name.replace("_", "-")
                raise ConfigError(f"--{option} {value} does not work; give a number from {least} to {most}")


def check_device(key: str, name: str) -> None:
    """Raises ConfigError for an unknown kind of device. Loads no torch."""
    kind, _, number = name.partition(":")
    if kind not in DEVICES or (name != kind and not number.isdecimal()):
        hint = did_you_mean(kind, DEVICES)
        raise ConfigError(f"{key}={name} is not a device; give auto, cpu, cuda, or one GPU such as cuda:1{hint}")


def usable_device(key: str, name: str) -> str:
    """Return the device ``name``; for ``auto`` a GPU if there is one, else "cpu". Raises ConfigError naming ``key``."""
    import torch  # lazy: `check_device` rejects mistyped names without it

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, ImportError) as error:  # torch without CUDA raises AssertionError
        first = str(error).strip().splitlines()[0]
        raise ConfigError(f"{key}={name!r} cannot be used here ({first}); use auto, cpu or cuda") from error
    return name


def check_folder(option: str, folder: Path) -> None:
    """Raises ConfigError if ``folder``, or a folder above it, is in fact a file or a dangling link."""
    existing = next((place for place in (folder, *folder.parents) if os.path.lexists(place)), None)
    if existing is not None and not existing.is_dir():
        raise ConfigError(f"{option} {folder} cannot be a folder, since {existing} is not one; name another place")


def check_model_place(option: str, name: str) -> None:
    """Raises ConfigError for an empty folder, and for a name that is neither a folder nor a hub name (OWNER/NAME)."""
    folder = Path(name)
    if not name or not (folder.is_dir() or (HUB_NAME.fullmatch(name) and not folder.exists())):
        raise ConfigError(f"{option} {name} is neither a folder nor a name on the hub (OWNER/NAME): give one of these")
    if folder.is_dir() and not any(folder.iterdir()):
        raise ConfigError(f"{option} {name} is an empty folder; name one with config.json, weights and a tokenizer")
