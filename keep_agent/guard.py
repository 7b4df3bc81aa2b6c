"""How every command ends: a result, or one line that names the bad value and the remedy, and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import OmegaConfBaseException

from keep_agent.errors import KeepError

BAD_INPUT = 2
INTERRUPTED = 130


def guarded(function: Callable[[], Any]) -> int:
    """Run a command; its exit code. Errors the user can act on become one line on standard error."""
    try:
        function()
    except KeyboardInterrupt:
        return INTERRUPTED
    except (KeepError, HydraException, OmegaConfBaseException) as error:
        sys.stderr.write(f"error: {one_line(error)}\n")
        return BAD_INPUT
    except OSError as error:
        if error.filename is None:  # no trouble with a file
            raise
        sys.stderr.write(f"error: {one_line(error)}; name a place that exists and can be written\n")
        return BAD_INPUT
    return 0


def one_line(error: Exception) -> str:
    """The message without line breaks; Hydra's list of options is kept, its search path is not."""
    text = str(error)
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, name = (error.missing_cfg_file or "").rpartition("/")
        return f"unknown {group} {name!r}; choose one of: {', '.join(sorted(o for o in error.options if o[0] != '_'))}"
    return " ".join(text.split())
