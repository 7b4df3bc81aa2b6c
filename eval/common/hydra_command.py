"""Hydra commands. The command line is validated first; jobs report errors on one line and leave no empty folder."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from keep_agent.config.known_settings import check_known
from keep_agent.config.model_names import expand_model
from keep_agent.errors import ConfigError
from keep_agent.guard import INTERRUPTED, guarded

SWEEP_RECORD = "multirun.yaml"  # Hydra writes it before the first job of a sweep


def check_target(file: Path) -> None:
    """Make the folder of ``file`` and check that the file can be written. Raises ConfigError or OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.is_dir():
        raise ConfigError(f"{file} is a folder; name a file in it")
    if not os.access(file.parent, os.W_OK):
        raise ConfigError(f"{file} cannot be written; name a file in a folder that may be written")


def hydra_command(config_name: str, job: Callable[[DictConfig, Path, Sequence[str]], Any]) -> int:
    """Compose ``configs/<config_name>.yaml`` with the command line and run ``job(config, output folder, overrides)``.

    With -m the job runs once per combination of values, even after a failure; the exit code is the highest of all jobs.
    In a process that a Hydra launcher started, errors are raised: the launcher passes them to the parent process.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise composition errors instead of printing them over many lines
    codes: list[int] = []
    missing, process = list[Path](), os.getpid()

    def run(config: DictConfig) -> None:
        hydra_config = HydraConfig.get()
        folder, sweep = Path(hydra_config.runtime.output_dir), hydra_config.mode == RunMode.MULTIRUN
        if OmegaConf.select(config, "eval.resume"):
            _remove_empty_folders(folder, sweep, missing)  # removed here too, since a killed job would leave them

        def play() -> None:
            job(config, folder, list(hydra_config.overrides.task))  # `task` raises if an override interpolates wrongly

        try:
            if os.getpid() != process:
                play()
                return
            codes.append(guarded(play))
        finally:
            _remove_empty_folders(folder, sweep, missing)
        if codes[-1] == INTERRUPTED:
            raise KeyboardInterrupt

    def command() -> None:
        missing.extend(missing_folders(sys.argv[1:]))
        sys.argv[1:] = expand_model(sys.argv[1:])
        options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)  # Hydra parses other options
        options.add_argument("--config-name", "-cn", default=config_name)
        options.add_argument("--config-dir", "-cd")
        options.add_argument("--config-path", "-cp")
        known, words = options.parse_known_args(sys.argv[1:])
        words = [word for word in words if word[:1] != "-" and ("=" in word or word[:1] == "~")]
        check_known(known.config_name, words, [text for text in (known.config_dir, known.config_path) if text])
        hydra.main(version_base="1.3", config_path="pkg://configs", config_name=config_name)(run)()

    codes.append(guarded(command))
    return max(codes)


def missing_folders(arguments: Sequence[str]) -> list[Path]:
    """Return the missing folders on the path of ``eval.out``, innermost first.

    Raises ConfigError for an escaped '${' in this path or any '${' in the current folder: Hydra would interpolate it.
    """
    default = OmegaConf.load(str(files("configs").joinpath("eval", "default.yaml"))).out
    values = [argument.partition("=")[2] for argument in arguments if argument.startswith("eval.out=")]
    out = Path([default, *values][-1]).absolute()
    if "\\${" in str(out) or "${" in str(Path.cwd()):
        raise ConfigError(f"{out} has '${{' in its path, so Hydra cannot write there; use a path without '${{'")
    return [path for path in (out, *out.parents) if not path.exists()]


def _remove_empty_folders(folder: Path, sweep: bool, missing: Sequence[Path]) -> None:
    """Remove the folders that Hydra makes before a job, if they are empty."""
    with suppress(OSError):  # a non-empty folder stays
        folder.rmdir()
        if sweep:
            if [path.name for path in folder.parent.iterdir()] == [SWEEP_RECORD]:
                (folder.parent / SWEEP_RECORD).unlink()
            folder.parent.rmdir()
        for path in missing:
            path.rmdir()
