"""Process start-up: rejects foreign packages with this project's names, and sets how OpenMP threads wait."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from keep_agent.errors import ConfigError

PACKAGES = ("envs", "memory", "planners", "configs")
ROOT = Path(__file__).resolve().parents[1]
MODULE = r"(.* )?-\w*m ?(keep_agent|eval|planners|memory|envs)(\.\w+)*"  # a module of the project after -m
SCRIPT = r".*[/\\]keep-(agent|eval-\w+|train-\w+)(\.exe)?"  # an installed command
BAD_INPUT = 2  # exit code
POLICY, SPINS = "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"


def start_up() -> None:
    """Prepare a process before it imports torch.

    For a shadowed package a command prints the error and exits; any other process gets a ConfigError.
    """
    try:
        check_packages()
    except ConfigError as error:
        if not is_command(sys.orig_argv, sys.argv):
            raise
        sys.stderr.write(f"error: {error}\n")
        sys.exit(BAD_INPUT)
    spin_openmp_threads()


def spin_openmp_threads() -> None:
    """Let OpenMP threads spin between operations, unless the user set it otherwise: prefills take 10 to 40 % less time.

    By default they sleep if they outnumber the cores, and the engine adds one. torch reads the variables at import.
    """
    if sys.platform.startswith("linux") and "torch" not in sys.modules and not {POLICY, SPINS} & os.environ.keys():
        os.environ.update({POLICY: "active", SPINS: "300000"})


def check_packages() -> None:
    """Raises ConfigError if another project's package shadows one of ours. Imports none of them."""
    for name in PACKAGES:
        place = _package_path(name)
        if place is not None and place not in (ROOT / name, ROOT / name / "__init__.py"):
            raise ConfigError(
                f"the package {name!r} found at {place} is not keep-agent's, which is at {ROOT / name}: run from "
                "another folder, start Python with -P (or use commands such as keep-eval-alfred), or rename yours"
            )


def _package_path(name: str) -> Path | None:
    """Return the file or folder that ``import name`` loads; None if there is no such package."""
    module = sys.modules.get(name)
    if module is not None:
        place = getattr(module, "__file__", None)
    else:
        spec = find_spec(name)
        place = spec and (spec.origin or next(iter(spec.submodule_search_locations or ()), None))
    return Path(place).resolve() if place else None


def is_command(original: Sequence[str], arguments: Sequence[str]) -> bool:
    """Return whether the command line ``original`` runs a module of the project, or an installed command."""
    program = " ".join(original[-len(arguments) - 1 :][:2])
    return re.fullmatch(f"{MODULE}|{SCRIPT}", program, re.DOTALL) is not None
