"""Packages of ours that a module of the same name hides, because it comes first on the path."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from keep_agent.errors import ConfigError

PACKAGES = ("envs", "memory", "planners", "configs")
HOME = Path(__file__).resolve().parents[1]
MODULE = r"(.* )?-\w*m ?(keep_agent|eval|planners|memory|envs)(\.\w+)*"  # of ours, behind -m
SCRIPT = r".*[/\\]keep-(agent|eval-\w+|train-\w+)(\.exe)?"  # that was installed with us
BAD_INPUT = 2  # exit code


def check_packages_at_start() -> None:
    """`check_packages` when `keep_agent` is imported: a command of ours ends with the sentence, without a traceback."""
    try:
        check_packages()
    except ConfigError as error:
        if not is_command(sys.orig_argv, sys.argv):
            raise
        sys.stderr.write(f"error: {error}\n")
        sys.exit(BAD_INPUT)


def is_command(original: Sequence[str], arguments: Sequence[str]) -> bool:
    """Whether a process runs one of our modules by ``python -m``, or an installed command of ours.

    :param original: its whole command line
    :param arguments: its ``sys.argv``, which has one entry for the program where ``original`` has one or two
    """
    program = " ".join(original[-len(arguments) - 1 :][:2])
    return re.fullmatch(f"{MODULE}|{SCRIPT}", program, re.DOTALL) is not None


def check_packages() -> None:
    """Raises ConfigError for a package of another project where ours is meant. Imports none of them."""
    for name in PACKAGES:
        place = _place(name)
        if place is not None and place not in (HOME / name, HOME / name / "__init__.py"):
            raise ConfigError(
                f"the package {name!r} found at {place} is not keep-agent's, which is at {HOME / name}: run from "
                "another folder, start Python with -P (or use commands such as keep-eval-alfred), or rename yours"
            )


def _place(name: str) -> Path | None:
    """The file or folder that ``import name`` would give, or has given; None if there is none."""
    module = sys.modules.get(name)
    if module is not None:
        found = getattr(module, "__file__", None)
    else:
        spec = find_spec(name)
        found = spec and (spec.origin or next(iter(spec.submodule_search_locations or ()), None))
    return Path(found).resolve() if found else None
