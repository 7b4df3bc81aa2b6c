"""Settings of a latency run: checks, cells (combinations of settings), configs of their contenders (timed methods)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from eval.common.resume import check_composed
from eval.common.variants import METHOD_KEYS, PLAIN, as_list, compose_variants, key_of, separate_hydra, within
from eval.latency.report.rows import Cell
from eval.latency.workloads import REPLAYED, Workload
from keep_agent.config.literal import literal
from keep_agent.config.model_names import choose_model
from keep_agent.config.settings import LEAST, OPTIONAL, check_settings
from keep_agent.errors import ConfigError, check_choice
from keep_agent.options import check_device
from memory.config.choices import DTYPES
from memory.engine.models.model_shapes import SHAPES
from planners.bundled import PLANNERS

METHOD_STORAGE = "own"  # name of the tier in which each method keeps the storage of its preset
LEAST_TOKENS = 8  # least latency.segment_tokens; lines cut to fewer tokens would become equal
COMMAND_KEYS = ("latency", "hydra", "wandb", "eval.out", "eval.resume", "eval.progress")  # ignored by methods
OPTION_INSTEAD = {
    "planner": "latency.planners=[NAME,NAME+KEY=VALUE]",
    "memory": "latency.planners=[NAME+memory/STAGE=NAME]",
    "model": "latency.models=NAME",
    "model.name": "latency.models=NAME",
    "model.device": "latency.devices=NAME",
    "model.dtype": "latency.dtypes=NAME",
    "memory.storage": "latency.tiers=NAME",
    "prompt.budget": "latency.segments=N",
}
COUNTS = {"latency.steps": 1, "latency.warmup": 0, "latency.candidates": 2, "latency.store": 1, "latency.age": 0}
NULLABLE = ("latency.candidates", "latency.store", "latency.age")
SWITCHES = ("latency.score", "latency.markdown", "eval.progress")


def check(config: DictConfig) -> None:
    """Raise ConfigError for invalid settings."""
    check_settings(config, {**LEAST, **COUNTS}, (*OPTIONAL, *NULLABLE), SWITCHES)
    settings = config.latency
    for key, least in (("segments", 2), ("segment_tokens", LEAST_TOKENS)):
        _check_counts(f"latency.{key}", as_list(settings[key]), least)
    changes = [value for value in as_list(settings.churn) if value != REPLAYED]
    _check_counts("latency.churn", changes, 0, f", or {REPLAYED}")
    for key in ("planners", "models", "devices", "dtypes", "tiers", "segments", "segment_tokens", "churn"):
        values = as_list(settings[key])
        if not values or len(set(values)) < len(values):
            raise ConfigError(f"latency.{key}={settings[key]} is empty or names a value twice; give each value once")
    for device in as_list(settings.devices):
        check_device("latency.devices", device)
    for dtype in as_list(settings.dtypes):
        check_choice("latency.dtypes", dtype, DTYPES)
    if settings.store is not None and settings.store < max(as_list(settings.segments)):
        raise ConfigError(f"latency.store={settings.store} is fewer than latency.segments={settings.segments}")
    if settings.plot not in (None, True, False):
        raise ConfigError(f"latency.plot={settings.plot} does not work; give true, false or null")


def _check_counts(key: str, values: Sequence[Any], least: int, alternative: str = "") -> None:
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(f"{key}={value} does not work; give whole numbers from {least} on{alternative}")


def cells_of(config: DictConfig) -> list[Cell]:
    """Return all combinations of settings; the cells of one model are adjacent."""
    settings, auto = config.latency, "cuda" if torch.cuda.is_available() else "cpu"
    devices = [auto if name == "auto" else name for name in as_list(settings.devices)]
    keys = as_list(settings.models), devices, as_list(settings.dtypes), as_list(settings.tiers)
    sizes = as_list(settings.segment_tokens), as_list(settings.churn), as_list(settings.segments)
    return [Cell(*values) for values in product(*keys, *sizes)]


def method_overrides(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that apply to all methods. Raises ConfigError for keys that a latency option replaces."""
    common = []
    for override in overrides:
        key = key_of(override)
        if key in OPTION_INSTEAD:
            raise ConfigError(f"{override} is not read here; use {OPTION_INSTEAD[key]}")
        if not within(key, COMMAND_KEYS):
            common.append(override)
    return common


def plan_of(config: DictConfig, cell: Cell, window: int) -> Workload:
    """Return the parameters of a cell's workload; groups are static after ``window`` steps without a change."""
    settings = config.latency
    return Workload(
        segments=cell.segments,
        store=settings.store or cell.segments,
        churn=cell.churn,
        steps=settings.steps,
        candidates=settings.candidates if settings.score else 0,
        age=window + 1 if settings.age is None else settings.age,
        seed=config.eval.seed,
    )


class Composer:
    """Composer of the contenders' configs: composes each once, and adapts it to each cell."""

    def __init__(self, config: DictConfig, overrides: Sequence[str], scratch: Path) -> None:
        """:param scratch: a folder for storages on disk
        :raises ConfigError: an unknown planner, tier or model setting
        """
        self._scratch = scratch
        planners = [name for name in as_list(config.latency.planners) if name != PLAIN]
        if not planners:
            raise ConfigError(
                f"latency.planners names no planner with a memory; add one, because {PLAIN} reads a planner's prompts"
            )
        self.plain = len(planners) < len(as_list(config.latency.planners)) or bool(config.latency.plain)
        self._configs: dict[tuple[str, str], dict[str, DictConfig]] = {}
        for tier, model in product(as_list(config.latency.tiers), as_list(config.latency.models)):
            storage = [] if tier == METHOD_STORAGE else [f"memory/storage={tier}"]
            is_shape = model in SHAPES and model not in PLANNERS and not Path(model).exists()
            needs_init = is_shape and "model.init" not in map(key_of, overrides)  # a shape without weights
            init = ["model.init=random"] if needs_init else []
            common = [*overrides, *choose_model(model), *init, *storage]
            with separate_hydra():
                self._configs[tier, model] = compose_variants(planners, common, METHOD_KEYS)

    def check(self, command_config: DictConfig, overrides: Sequence[str], run: Path) -> None:
        """Check the configs of a resumed ``run`` as `check_composed` does."""
        for configs in self._configs.values():
            for config in configs.values():
                check_composed(config, command_config, overrides, run)

    @property
    def setting(self) -> DictConfig:
        """Return the first contender's config, to read settings that all contenders share."""
        return next(iter(next(iter(self._configs.values())).values()))

    def configs(self, cell: Cell) -> Mapping[str, DictConfig]:
        """Return the configs of a cell by contender."""
        configs = {}
        for name, config in self._configs[cell.tier, cell.model].items():
            configs[name] = changed = deepcopy(config)
            changed.model.device, changed.model.dtype, changed.prompt.budget = cell.device, cell.dtype, cell.segments
            storage = changed.memory.storage
            for number, part in enumerate([storage, *storage.get("tiers", [])]):  # own folder per storage
                if "folder" in part and part.folder is None:
                    part.folder = literal(str(self._scratch / name / str(number)))
        return configs
