"""Run folder that a command names with ``--out``; the same command resumes the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from eval.common.resume import changed_settings
from keep_agent.errors import ConfigError
from keep_agent.rollout.run_folder import CONFIG, SUMMARY, RunFolder, read_config
from memory.files.end_mark import end_of


class OutFolder(RunFolder):
    """Results of a run. Its settings: ``options`` of the command, ``configs`` made of them, ``weights`` (a hash)."""

    @classmethod
    def find(cls, path: Path, settings: Mapping[str, Any]) -> Self | None:
        """Open the run at ``path``; None if there is none. Raises ConfigError if it has other settings."""
        if not (path / CONFIG).exists():
            for name in (cls.lines, SUMMARY):
                if (path / name).exists():
                    raise ConfigError(f"{path} holds {name} without {CONFIG}; give --out another folder")
            return None
        saved = read_config(path)
        is_own = end_of(path / cls.lines).exists()  # it is older than the config
        if not is_own or saved.keys() != settings.keys() | {"weights"}:
            raise ConfigError(f"{path} holds a run of another command; give --out another folder")
        for part in settings:  # options first: their names are clearer than those of the configs composed from them
            if changed := changed_settings(settings[part], saved[part]):
                text = ", ".join(f"{key}={change}" for key, change in sorted(changed.items()))
                raise ConfigError(f"{path} has other settings: {text}; use the same, or give --out another folder")
        return cls.resume(path)
