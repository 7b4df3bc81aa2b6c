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
MODULE = r"(.* )?-\w*m ?(keep_agent|eval|planners|memory|envs)(\.\w+)*"  # a module of the project, after Python's -m
SCRIPT = r".*[/\\]keep-(agent|eval-\w+|train-\w+)(\.exe)?"  # an installed command
BAD_INPUT = 2  # exit code
POLICY, SPINS = "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"  # environment variables


def start_up() -> None:
    """Prepare a process before it imports torch.

    If another project's package shadows ours, a command prints the error and exits; other processes get a ConfigError.
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
    """Let OpenMP threads spin between operations, so that prefills take 10 to 40 % less time. Keeps a user's setting.

    By default they sleep if there are more threads than cores, which the engine's own thread causes. torch reads
    `POLICY` and `SPINS` only when it is imported.
    """
    if sys.platform.startswith("linux") and "torch" not in sys.modules and not {POLICY, SPINS} & os.environ.keys():
        os.environ.update({POLICY: "active", SPINS: "300000"})


def check_packages() -> None:
    """Raises ConfigError if another project's package shadows one of ours. Imports no package."""
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
    """Return whether a process with this `sys.orig_argv` and `sys.argv` runs a module or command of the project."""
    program = " ".join(original[-len(arguments) - 1 :][:2])
    return re.fullmatch(f"{MODULE}|{SCRIPT}", program, re.DOTALL) is not None
