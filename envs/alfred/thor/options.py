"""How AI2-THOR is started and talked to: ``env.thor`` of the config."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from shlex import quote, split
from typing import Any

from keep_agent.errors import ConfigError

STAND_IN = "stand-in"
PLATFORMS = ("Linux64", "CloudRendering", "OSXIntel64")
SERVERS = ("fifo", "wsgi")


@dataclass(frozen=True)
class ThorOptions:
    """Seconds, pixels, metres and degrees. Raises ConfigError for what cannot work."""

    executable: str | None = None  # of a build, a command, or "stand-in"; None: the client's own build
    platform: str | None = None  # of the client's own build; None: Linux64 with a display, else CloudRendering
    headless: bool = False  # no images at all: needs neither display nor GPU
    gpu: int | None = None  # number of the GPU that CloudRendering draws with
    display: str | None = None  # X display, such as ":0"; None: DISPLAY
    server: str = "fifo"
    width: int = 300
    height: int = 300
    quality: str = "Ultra"
    field_of_view: float = 60.0  # as in ALFRED, as are the next two
    visibility: float = 1.5  # distance up to which things can be used
    grid: float = 0.25
    tries: int = 5  # poses from which a skill is tried
    start_timeout: float = 180.0  # until a new process has sent its first message
    timeout: float = 60.0  # of an action

    def __post_init__(self) -> None:
        for name in ("width", "height", "tries", "start_timeout", "timeout", "field_of_view", "visibility", "grid"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e5:
                raise ConfigError(f"env.thor.{name}={value!r} does not work; give a number above 0")
        for name in ("width", "height", "tries"):
            if not isinstance(getattr(self, name), int):
                raise ConfigError(f"env.thor.{name}={getattr(self, name)!r} does not work; give a whole number")
        if self.platform is not None and self.platform not in PLATFORMS:
            raise ConfigError(f"env.thor.platform={self.platform!r} is unknown; use one of {', '.join(PLATFORMS)}")
        if self.server not in SERVERS:
            raise ConfigError(f"env.thor.server={self.server!r} is unknown; use one of {', '.join(SERVERS)}")
        if self.gpu is not None and (isinstance(self.gpu, bool) or not isinstance(self.gpu, int) or self.gpu < 0):
            raise ConfigError(f"env.thor.gpu={self.gpu!r} is no GPU; give its number, or null")
        if not isinstance(self.headless, bool):
            raise ConfigError(f"env.thor.headless={self.headless!r} does not work; give true or false")

    @property
    def stands_in(self) -> bool:
        """Whether it is our stand-in that answers."""
        return self.executable == STAND_IN

    def command(self, data: str | None) -> str | None:
        """What is run, with blanks quoted as a shell would; None: the client's own build.

        Raises ConfigError for a file that is not there.
        """
        if self.stands_in:
            command = [sys.executable, "-m", "envs.alfred.thor_stub"]
            return " ".join(map(quote, command + (["--data", str(data)] if data is not None else [])))
        if self.executable is None:
            return None
        whole = Path(self.executable).expanduser()
        if whole.is_file():
            return quote(str(whole))
        first = split(self.executable)[:1]
        if first and "/" in first[0] and not Path(first[0]).is_file():
            raise ConfigError(f"env.thor.executable={self.executable!r}: there is no {first[0]}; name a build's file")
        return self.executable


def thor_options(given: Mapping[str, Any] | None, embedded: bool = False) -> ThorOptions:
    """Options of a mapping. Embedded houses are in no build, so who names none gets the stand-in there.

    Raises ConfigError for unknown names and bad values.
    """
    values = dict(given or {})
    known = [field.name for field in fields(ThorOptions)]
    for name in values:
        if name not in known:
            raise ConfigError(f"env.thor.{name} is unknown; use one of {', '.join(known)}")
    if embedded and values.get("executable") is None:
        values["executable"] = STAND_IN
    return ThorOptions(**values)
