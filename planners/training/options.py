"""Options of the trainers' command lines. The module does not import torch, so that mistyped options fail fast."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from keep_agent.errors import KeepError, check_rate
from keep_agent.options import check_device, check_folder, check_ranges

OPTIMIZERS = ("adamw", "muon")
PRECISIONS = ("auto", "bfloat16", "float32")
TRANSCRIPT_TOKENS = 1500  # default of --transcript: maximum tokens of a transcript


@dataclass(frozen=True, slots=True)
class Option:
    """A numeric option, or a list of numbers if the default is a list; ``limits`` are the least and greatest value."""

    name: str
    type: type
    default: float | list[int]
    limits: tuple[float, float] | None
    help: str


def make_parser(description: str | None) -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", required=True, help="run folder; resumed if it has a checkpoint")
    p.add_argument("--device", default="cpu", help="device of torch (default: %(default)s)")
    return p


def add_numbers(p: argparse.ArgumentParser, numbers: Sequence[Option]) -> None:
    for number in numbers:
        several = {"nargs": "+", "metavar": "N"} if isinstance(number.default, list) else {}
        text = f"{number.help} (default: %(default)s)"
        p.add_argument(f"--{number.name}", type=number.type, default=number.default, help=text, **several)


def ranges_of(numbers: Sequence[Option]) -> dict[str, tuple[float, float]]:
    """Return the limits of the options that have limits, by attribute name in the parsed arguments."""
    return {number.name.replace("-", "_"): number.limits for number in numbers if number.limits}


def check_common(args: argparse.Namespace, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Raises ConfigError for an invalid number, device or folder."""
    check_ranges(args, ranges)
    check_rate(args.lr)
    check_device("--device", args.device)
    check_folder("--out", Path(args.out))


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn an interrupt into exit code 130, and a KeepError into its message and exit code 2."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    except KeepError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
