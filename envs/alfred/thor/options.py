"""Options of the AI2-THOR process and its connection: ``env.thor`` of the config."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from shlex import quote, split
from typing import Any

from keep_agent.errors import ConfigError

STAND_IN = "stand-in"
STUB_MODULE = "envs.alfred.thor_stub"  # module of the stand-in, which imitates AI2-THOR's executable
PLATFORMS = ("Linux64", "CloudRendering", "OSXIntel64")
SERVERS = ("fifo", "wsgi")


@dataclass(frozen=True)
class ThorOptions:
    """Options: times in seconds, images in pixels, lengths in metres, angles in degrees. Raises ConfigError."""

    executable: str | None = None  # AI2-THOR's executable, a command, or "stand-in"; None: ai2thor downloads a build
    platform: str | None = None  # of the downloaded build; None: CloudRendering for images without a display
    headless: bool = False  # no images: needs neither display nor GPU
    gpu: int | None = None  # GPU number for CloudRendering
    display: str | None = None  # X display, such as ":0"; None: the environment variable DISPLAY
    server: str = "fifo"
    width: int = 300
    height: int = 300
    quality: str = "Ultra"
    field_of_view: float = 60.0  # this default and the next two are ALFRED's
    visibility: float = 1.5  # maximum distance at which things can be used
    grid: float = 0.25
    tries: int = 5  # maximum number of poses from which an action is tried
    start_timeout: float = 180.0  # limit for the first message of a new process
    timeout: float = 60.0  # limit for the reply to an action

    def __post_init__(self) -> None:
        for name in ("field_of_view", "visibility", "grid", "start_timeout", "timeout"):
            self._check(name, _positive(getattr(self, name), int | float), "does not work; give a number above 0")
        for name in ("width", "height", "tries"):
            self._check(name, _positive(getattr(self, name), int), "does not work; give a whole number above 0")
        for name in ("executable", "display"):
            self._check(name, isinstance(getattr(self, name), str | None), "is not a text; write it in quotes")
        self._check("quality", isinstance(self.quality, str), "is not a text; write it in quotes")
        self._check("headless", isinstance(self.headless, bool), "does not work; give true or false")
        self._check("gpu", self.gpu is None or _positive(self.gpu, int, 0), "is not a GPU; give its number, or null")
        choices = f"is unknown; use one of {', '.join(PLATFORMS)}, or null"
        self._check("platform", self.platform is None or self.platform in PLATFORMS, choices)
        self._check("server", self.server in SERVERS, f"is unknown; use one of {', '.join(SERVERS)}")

    def _check(self, name: str, valid: bool, remedy: str) -> None:
        if not valid:
            raise ConfigError(f"env.thor.{name}={getattr(self, name)!r} {remedy}")

    @property
    def is_stand_in(self) -> bool:
        """Whether ``executable`` is the stand-in for AI2-THOR, by name or as a command."""
        return self.executable is not None and (self.executable == STAND_IN or STUB_MODULE in self.executable)

    def command(self, data: str | None) -> str | None:
        """Return the command line for a shell; None for ai2thor's own build. Raises ConfigError for a missing file."""
        if self.executable == STAND_IN:
            command = [sys.executable, "-m", STUB_MODULE]
            return " ".join(map(quote, command + (["--data", str(data)] if data is not None else [])))
        if self.executable is None:
            return None
        file = Path(self.executable).expanduser()
        if file.is_file():
            return quote(str(file))
        first = split(self.executable)[:1]
        if first and "/" in first[0] and not Path(first[0]).is_file():
            raise ConfigError(f"env.thor.executable={self.executable!r}: there is no {first[0]}; name an existing file")
        return self.executable


def _positive(value: Any, kind: Any, least: float = 1e-6) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and least <= value < 1e5


def thor_options(mapping: Mapping[str, Any] | None, embedded: bool = False) -> ThorOptions:
    """Validate options; if ``embedded`` (the house is generated), the stand-in is the default. Raises ConfigError."""
    values = dict(mapping or {})
    names = [field.name for field in fields(ThorOptions)]
    for name in values:
        if name not in names:
            raise ConfigError(f"env.thor.{name} is unknown; use one of {', '.join(names)}")
    if embedded and values.get("executable") is None:
        values["executable"] = STAND_IN
    return ThorOptions(**values)
