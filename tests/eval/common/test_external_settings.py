"""External settings: a run folder cannot choose programs, addresses or files to write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from eval.common.external_settings import EXTERNAL_KEYS, FOLDER, check_external
from eval.common.resume import resumed_config
from keep_agent.config.setting_types import allowed_kinds
from keep_agent.errors import ConfigError

OUTWARD = {
    *("folder", "path", "file", "dir", "out", "output", "url", "host", "port", "address", "simulator", "record"),
    *("executable", "command", "display", "server", "proxy", "cache"),
}
HARMLESS = {
    "eval.out": "folder of a new run; a resumed run stays in its folder",
    "env.thor.server": "fifo or wsgi, both on this machine",
}
DISK = {"_target_": "memory.storage.disk.Disk", "folder": "elsewhere"}


def config(command: str, *overrides: str) -> DictConfig:
    with initialize_config_module("configs", version_base="1.3"):
        return compose(command, ["eval.resume=RUN", *overrides])


def resumed(saved: DictConfig, *overrides: str, command: str = "alfred") -> DictConfig:
    return resumed_config(config(command, *overrides), OmegaConf.to_container(saved), list(overrides))


def test_every_setting_with_an_external_name_is_classified() -> None:
    keys = {key for key in allowed_kinds() if OUTWARD & {*key.rpartition(".")[2].split("_")}}
    folders = {key for key in keys if key.startswith("memory.") and key.endswith(f".{FOLDER}")}
    assert keys - folders == EXTERNAL_KEYS.keys() | HARMLESS.keys()
    assert folders == {"memory.storage.disk.Disk.folder"}


@pytest.mark.parametrize("key", EXTERNAL_KEYS)
def test_a_run_alone_cannot_choose_an_external_setting(key: str) -> None:
    command = "wah" if key in ("env.simulator", "env.record") else "alfred"
    saved = config(command, f"{key}=some", "eval.launcher=ray")
    with pytest.raises(ConfigError, match=rf"RUN was run with {key}=some, .* give {key}='some', .*command line"):
        resumed(saved, command=command)
    assert OmegaConf.select(resumed(saved, f"{key}=some", command=command), key) == "some"
    for harmless in EXTERNAL_KEYS[key][1]:
        OmegaConf.update(saved, key, harmless)
        resumed(saved, command=command)


def test_an_unused_address_is_accepted() -> None:
    saved = config("alfred", "eval.ray.address=some", "eval.launcher=ray")
    elsewhere = resumed(saved, "eval.launcher=local")
    with pytest.raises(ConfigError, match="eval.ray.address=some"):
        resumed(elsewhere, "eval.launcher=ray")


@pytest.mark.parametrize(
    ("storage", "place"),
    [
        (DISK, "memory.storage.folder"),
        ({"_target_": "memory.storage.tiers.Tiers", "tiers": [DISK]}, "memory.storage.tiers.0.folder"),
    ],
)
def test_a_run_alone_cannot_choose_a_storage_folder(storage: dict[str, Any], place: str) -> None:
    saved = config("alfred")
    saved.memory.storage = storage
    with pytest.raises(ConfigError, match=f"{place}=elsewhere, and a run folder cannot choose a folder to write"):
        resumed(saved)
    disk = ("memory/storage=disk", "memory.storage.folder=elsewhere")
    assert resumed(config("alfred", *disk), *disk).memory.storage.folder == "elsewhere"
    resumed(config("alfred", "memory/storage=tiers"))


@pytest.mark.parametrize(
    ("overrides", "accepted"),
    [
        (["latency.planners=[keep,a:keep+memory/storage=disk+memory.storage.folder=/x]"], True),
        (["latency.planners=['a:keep+memory.storage.folder=/x+memory/storage=disk']"], True),
        (["latency.planners=[a:keep+memory.storage.folder=/xy]"], False),
        (["eval.out=/x"], False),
        ([], False),
    ],
)
def test_a_folder_may_be_given_for_one_of_several_methods(overrides: Sequence[str], accepted: bool) -> None:
    saved = config("alfred", "memory/storage=disk", "memory.storage.folder=/x")
    if accepted:
        check_external(saved, config("latency"), overrides, "RUN")
        return
    with pytest.raises(ConfigError, match=r"memory\.storage\.folder=/x"):
        check_external(saved, config("latency"), overrides, "RUN")


def test_a_refused_setting_writes_nothing(tmp_path: Path) -> None:
    saved = config("wah", f"env.record={tmp_path}/deep/record.jsonl")
    with pytest.raises(ConfigError, match="env.record"):
        resumed(saved, command="wah")
    assert not list(tmp_path.iterdir())
