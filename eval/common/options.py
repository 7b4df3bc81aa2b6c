"""Options of the commands that are not composed by Hydra."""

from __future__ import annotations

import argparse


def options(about: str | None, name: str | None = None) -> argparse.ArgumentParser:
    """Return a parser of the installed command ``name``, whose help begins with the text ``about``."""
    return argparse.ArgumentParser(name, description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
