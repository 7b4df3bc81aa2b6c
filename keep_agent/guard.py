"""Guard of every command: turns errors into one line on standard error and an exit code."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from keep_agent.config.literal import parse_error_message
from keep_agent.errors import KeepError
from keep_agent.files import FULL
from keep_agent.startup import BAD_INPUT

INTERRUPTED = 130


def guarded(function: Callable[[], Any]) -> int:
    """Run a command; return its exit code. A KeepError becomes a line on standard error; SIGTERM acts like Ctrl-C."""
    try:
        with _terminable():
            function()
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except (KeepError, HydraException, OmegaConfBaseException) as error:
        sys.stderr.write(f"error: {one_line(error)}\n")
        return BAD_INPUT
    except OSError as error:
        if error.filename is None and error.errno not in FULL:  # the error is not about a file
            raise
        _give_up_output()
        remedy = "free some room" if error.errno in FULL else "name a place that exists and can be written"
        sys.stderr.write(f"error: {one_line(error)}; {remedy}\n")
        return BAD_INPUT
    return 0


def _give_up_output() -> None:
    """Send standard output to the null device if it cannot be written, so that Python's flush at exit succeeds."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError, ValueError), Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt. Only the main thread can set handlers; elsewhere this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def one_line(error: Exception) -> str:
    """Return an error's message on one line. A message of Hydra or OmegaConf is cut to cause, key and valid options."""
    text = str(error)
    if isinstance(error, OmegaConfBaseException):
        key = f"{error.full_key}: " if error.full_key else ""
        text = f"{key}{text.partition(chr(10))[0]}; correct the value"
    if isinstance(error, OverrideParseException):
        text = parse_error_message(error.override)
    if isinstance(error, ConfigCompositionException) and error.__cause__ is not None:
        text = f"{text}: {str(error.__cause__).splitlines()[0]}"
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, name = (error.missing_cfg_file or "").rpartition("/")
        return f"unknown {group} {name!r}; choose one of: {', '.join(sorted(o for o in error.options if o[0] != '_'))}"
    return " ".join(text.split())
