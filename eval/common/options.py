"""Option parser of the commands that do not use Hydra."""

from __future__ import annotations

import argparse


def command_parser(about: str | None, name: str | None = None) -> argparse.ArgumentParser:
    """Return a parser for the installed command ``name``, with the description ``about``."""
    return argparse.ArgumentParser(name, description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
