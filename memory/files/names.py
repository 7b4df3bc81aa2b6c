"""Agent names: ids that are safe in the names of files. Loads no torch."""

from __future__ import annotations

import hashlib
import re

from keep_agent.errors import ConfigError

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", re.ASCII)
RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)  # devices on Windows
AGENT_DIGITS = 8  # hexadecimal digits of the id's SHA-256


def safe_id(agent: str) -> str:
    """Return ``agent`` if it is a safe name for a file. Raises ConfigError."""
    if not is_safe(agent):
        raise ConfigError(
            f"agent id {agent!r} is not a safe name for a file: use 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-', no '.' "
            "in front, no '..', no name of a device such as 'con'"
        )
    return agent


def agent_stem(agent: str) -> str:
    """Make the agent's part of a file name: its id and a hash of it, which distinguishes upper and lower case."""
    return f"{safe_id(agent)}-{short_hash(agent, AGENT_DIGITS)}"


def is_safe(agent: str) -> bool:
    return bool(NAME.fullmatch(agent)) and ".." not in agent and not RESERVED.fullmatch(agent)


def short_hash(text: str, digits: int) -> str:
    """Compute the first hexadecimal ``digits`` of the text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:digits]
