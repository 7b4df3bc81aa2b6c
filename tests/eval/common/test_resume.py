"""Settings of a resumed run: those that the command line may change, and those of saved configs of any age."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf

from envs.worlds import choices_of
from eval.common.resume import begin_run, resumed_config
from keep_agent.config.examples import make_examples
from keep_agent.config.factory import make_env, make_episodes, make_setting
from keep_agent.config.settings import check_settings
from keep_agent.errors import ConfigError, DataError
from keep_agent.rollout.run_folder import RunFolder

THOR = {"width": 300, "gpu": 0, "display": None}
PARTS = ("env", "eval", "planner", "prompt", "model", "engine", "memory")
NEW = ("backend", "render", "thor")  # keys of env that are missing in older configs


def config(thor: Any = None, **env: Any) -> DictConfig:
    parts = {"eval": {"resume": "RUN", "progress": True}, "env": {"skills": "lota", **env, "thor": thor}}
    return OmegaConf.create(parts)


def test_the_machine_of_the_simulator_may_change() -> None:
    new = config({"width": 300, "gpu": 1, "display": None})
    assert resumed_config(new, OmegaConf.to_container(config(THOR)), ["env.thor.gpu=1"]).env == new.env
    assert resumed_config(new, OmegaConf.to_container(config(THOR)), []).env.thor == THOR  # not overridden


def test_a_missing_setting_of_the_simulator_is_added() -> None:
    for saved in (config(), OmegaConf.create({"eval": {}, "env": {"skills": "lota"}})):
        resumed = resumed_config(config(THOR), OmegaConf.to_container(saved), ["env.thor.gpu=0"])
        assert resumed.env.thor == {"gpu": 0}


def test_a_run_without_worker_settings_takes_them_all() -> None:
    new = config()
    new.eval.update({"workers": 4, "launcher": "ray", "ray": {"address": None, "num_cpus": 2, "num_gpus": 0}})
    resumed = resumed_config(new, OmegaConf.to_container(config()), ["eval.launcher=ray", "eval.ray.num_cpus=2"])
    assert resumed.eval == new.eval


@pytest.mark.parametrize(("installed", "encoder"), [(object(), "minilm"), (None, "hashed")])
def test_a_run_saves_the_choice_of_auto(monkeypatch: pytest.MonkeyPatch, installed: object, encoder: str) -> None:
    monkeypatch.setattr("memory.segments.sentence_encoder.find_spec", lambda _: installed)
    with initialize_config_module("configs", version_base="1.3"):
        resumed = config_of("planner=expert")
        assert resumed.prompt.encoder == encoder
        second = config_of("planner=expert", "prompt.encoder=mpnet")
    assert second.prompt.encoder == "mpnet"


@pytest.mark.parametrize("key", ["width", "tries", "visibility", "executable"])
def test_settings_of_the_simulated_world_cannot_change(key: str) -> None:
    new = config({**THOR, key: 7})
    with pytest.raises(ConfigError, match=rf"env.thor.{key}=7 \(was"):
        resumed_config(new, OmegaConf.to_container(config(THOR)), [f"env.thor.{key}=7"])


@pytest.mark.parametrize("key", ["env.backend", "env.thorough"])
def test_settings_that_decide_the_outcome_cannot_change(key: str) -> None:
    new = config(**{key.rpartition(".")[2]: "thor"})
    with pytest.raises(ConfigError, match=rf"{key}=thor \(was None\)"):
        resumed_config(new, OmegaConf.to_container(config()), [f"{key}=thor"])


@pytest.mark.parametrize("world", ["alfred", "wah"])
def test_a_config_without_the_newest_keys_is_valid(world: str) -> None:
    with initialize_config_module("configs", version_base="1.3"):
        plain: dict[str, Any] = OmegaConf.to_container(compose(world, ["planner=expert", "eval.episodes=1"]))
    plain["env"] = {key: value for key, value in plain["env"].items() if key not in (*NEW, "max_steps")}
    del plain["eval"]["frames"]
    old = OmegaConf.create(plain)
    check_settings(old)
    assert not {*NEW, "max_steps"} & set(choices_of(old.env))
    assert make_setting(old.env).max_steps == make_env(old.env, make_episodes(old.env, old.eval)).unwrapped.max_steps
    assert len(make_examples(old.env, 2)) == 2


@pytest.mark.parametrize("setting", ["planner.retry=no", "prompt.goal=off"])
def test_a_switch_with_another_value_is_refused(setting: str) -> None:
    with initialize_config_module("configs", version_base="1.3"):
        resumed = compose("alfred", ["planner=keep", setting])
    with pytest.raises(ConfigError, match=f"{setting} does not work; give true or false"):
        check_settings(resumed)


@cache
def whole_config() -> dict[str, Any]:
    """Return the config of a run of KEEP; Hydra must be initialized."""
    return OmegaConf.to_container(compose("alfred", ["prompt.encoder=hashed"]), resolve=True)


def config_of(*overrides: str) -> DictConfig:
    """Return the config of a command line of ``eval.alfred``; Hydra must be initialized."""
    with begin_run(RunFolder, compose("alfred", list(overrides)), Path("run"), overrides, check_settings) as start:
        return start[1]


def resume(path: Path, spoil: Callable[[dict[str, Any]], Any], *overrides: str) -> DictConfig:
    """Return the config of a resumed run of KEEP whose ``config.json`` was changed by ``spoil``."""
    with initialize_config_module("configs", version_base="1.3"):
        plain = deepcopy(whole_config())
        spoil(plain)
        RunFolder.create(path, plain).release()
        overrides = [f"eval.resume={path}", *overrides]
        return config_of(*overrides)


@pytest.mark.parametrize("value", [5, None, [], "text"])
@pytest.mark.parametrize("key", [*PARTS, "env.thor", "eval.ray"])
def test_a_saved_group_that_is_no_mapping_is_named(key: str, value: Any, tmp_path: Path) -> None:
    def spoil(plain: dict[str, Any]) -> None:
        above, _, last = key.rpartition(".")
        (plain[above] if above else plain)[last] = value

    with pytest.raises(DataError, match=rf"run/config\.json: {key}=.* does not work; give settings below this key"):
        resume(tmp_path / "run", spoil)


@pytest.mark.parametrize(
    "key",
    [
        *(part for part in PARTS if part != "eval"),
        *("env.id", "env.data", "planner.kind", "prompt.encoder", "eval.seed", "engine.transport", "eval.ray.num_cpus"),
    ],
)
def test_a_missing_saved_setting_is_named(key: str, tmp_path: Path) -> None:
    def spoil(plain: dict[str, Any]) -> None:
        above, _, last = key.rpartition(".")
        for part in above.split(".") if above else ():
            plain = plain[part]
        del plain[last]

    with pytest.raises(DataError, match=rf"run/config\.json: there is no {key}; restore the file"):
        resume(tmp_path / "run", spoil)


@pytest.mark.parametrize(
    ("part", "key", "value"), [("eval", "seed", "x"), ("prompt", "encoder", 5), ("env", "data", 5)]
)
def test_a_saved_value_of_another_type_is_named(part: str, key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"run/config\.json: {part}\.{key}={value} does not work"):
        resume(tmp_path / "run", lambda plain: plain[part].update({key: value}))


def test_an_error_of_the_command_line_does_not_name_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="^eval.workers=x does not work"):
        resume(tmp_path / "run", lambda plain: None, "eval.workers=x")
    assert resume(tmp_path / "again", lambda plain: None, "eval.workers=2").eval.workers == 2


def test_a_planner_without_a_model_needs_no_model_settings(tmp_path: Path) -> None:
    def spoil(plain: dict[str, Any]) -> None:
        plain["planner"] = {"name": "random", "kind": "random"}
        for key in ("memory", "model", "engine"):
            del plain[key]

    assert resume(tmp_path / "run", spoil).planner.kind == "random"
