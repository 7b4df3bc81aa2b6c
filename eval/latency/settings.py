"""From the command line to cells and configs: lists where one value will do, checked before anything is built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from eval.common.accepted_overrides import key_of, within
from eval.common.resume import check_composed
from eval.common.variants import METHOD_KEYS, PLAIN, as_list, compose_variants, separate_hydra
from eval.latency.report.rows import Cell
from eval.latency.workloads import REPLAYED, Plan
from keep_agent.config.literal import literal
from keep_agent.config.model_override import choose_model
from keep_agent.config.settings import LEAST, OPTIONAL, check_settings
from keep_agent.errors import ConfigError, check_choice
from keep_agent.options import check_device
from memory.config.choices import DTYPES
from memory.engine.models.model_shapes import SHAPES
from planners.tiny.checkpoint import PLANNERS

METHOD_STORAGE = "own"  # tier: every method's own storage
LEAST_TOKENS = 8  # shorter lines come out alike
COMMAND_KEYS = (
    "latency",
    "hydra",
    "wandb",
    "eval.out",
    "eval.resume",
    "eval.progress",
)  # of the command, no method's setting
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
    """Raises ConfigError for what cannot be timed."""
    check_settings(config, {**LEAST, **COUNTS}, (*OPTIONAL, *NULLABLE), SWITCHES)
    chosen = config.latency
    for key, least in (("segments", 2), ("segment_tokens", LEAST_TOKENS)):
        _check_counts(f"latency.{key}", as_list(chosen[key]), least)
    _check_counts("latency.churn", [one for one in as_list(chosen.churn) if one != REPLAYED], 0, f", or {REPLAYED}")
    for key in ("planners", "models", "devices", "dtypes", "tiers", "segments", "segment_tokens", "churn"):
        values = as_list(chosen[key])
        if not values or len(set(values)) < len(values):
            raise ConfigError(f"latency.{key}={chosen[key]} is empty or names something twice; name each once")
    for device in as_list(chosen.devices):
        check_device("latency.devices", device)
    for dtype in as_list(chosen.dtypes):
        check_choice("latency.dtypes", dtype, DTYPES)
    if chosen.store is not None and chosen.store < max(as_list(chosen.segments)):
        raise ConfigError(f"latency.store={chosen.store} holds fewer than latency.segments={chosen.segments}")
    if chosen.plot not in (None, True, False):
        raise ConfigError(f"latency.plot={chosen.plot} does not work; give true, false or null")


def _check_counts(key: str, values: Sequence[Any], least: int, other: str = "") -> None:
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(f"{key}={value} does not work; give whole numbers from {least} on{other}")


def cells_of(config: DictConfig) -> list[Cell]:
    """All combinations; those that share a model follow one another."""
    chosen = config.latency
    devices = [_device(name) for name in as_list(chosen.devices)]
    keys = as_list(chosen.models), devices, as_list(chosen.dtypes), as_list(chosen.tiers)
    sizes = as_list(chosen.segment_tokens), as_list(chosen.churn), as_list(chosen.segments)
    return [Cell(*values) for values in product(*keys, *sizes)]


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name


def method_overrides(given: Sequence[str]) -> list[str]:
    """The overrides that methods and models are composed with; raises ConfigError for those with a list of their own.

    What a stage of one method only has stands behind that method.
    """
    found = []
    for override in given:
        key = key_of(override)
        if key in OPTION_INSTEAD:
            raise ConfigError(f"{override} is not read here; use {OPTION_INSTEAD[key]}")
        if not within(key, COMMAND_KEYS):
            found.append(override)
    return found


def plan_of(config: DictConfig, cell: Cell, window: int) -> Plan:
    """What the cell's workload is made from; groups are static after ``window`` quiet steps."""
    chosen = config.latency
    return Plan(
        segments=cell.segments,
        store=chosen.store or cell.segments,
        churn=cell.churn,
        steps=chosen.steps,
        candidates=chosen.candidates if chosen.score else 0,
        age=window + 1 if chosen.age is None else chosen.age,
        seed=config.eval.seed,
    )


class Composer:
    """Configs of the contenders, composed once and bent to each cell."""

    def __init__(self, config: DictConfig, overrides: Sequence[str], scratch: Path) -> None:
        """:param scratch: a folder for storages on disk
        :raises ConfigError: an unknown planner, tier or model setting
        """
        self._scratch = scratch
        wanted = [name for name in as_list(config.latency.planners) if name != PLAIN]
        if not wanted:
            raise ConfigError(f"latency.planners names no planner with a memory, of which {PLAIN} could take prompts")
        self.plain = len(wanted) < len(as_list(config.latency.planners)) or bool(config.latency.plain)
        self._configs: dict[tuple[str, str], dict[str, DictConfig]] = {}
        for tier, model in product(as_list(config.latency.tiers), as_list(config.latency.models)):
            given = [
                *overrides,
                *_model_overrides(model, overrides),
                *([] if tier == METHOD_STORAGE else [f"memory/storage={tier}"]),
            ]
            with separate_hydra():
                self._configs[tier, model] = compose_variants(wanted, given, METHOD_KEYS)

    def check(self, asked: DictConfig, given: Sequence[str], run: Path) -> None:
        """Raises as `check_composed` does, where the ``run`` says what is composed."""
        for configs in self._configs.values():
            for config in configs.values():
                check_composed(config, asked, given, run)

    @property
    def setting(self) -> DictConfig:
        """What all contenders have in common: the first one's config."""
        return next(iter(next(iter(self._configs.values())).values()))

    def of(self, cell: Cell) -> Mapping[str, DictConfig]:
        """By contender's name."""
        found = {}
        for name, config in self._configs[cell.tier, cell.model].items():
            own = deepcopy(config)
            own.model.device, own.model.dtype, own.prompt.budget = cell.device, cell.dtype, cell.segments
            _separate_folders(own.memory.storage, self._scratch / name)
            found[name] = own
        return found


def _model_overrides(name: str, overrides: Sequence[str]) -> list[str]:
    """Overrides that choose a model; a shape without weights gets random ones."""
    chosen = choose_model(name)
    bare = name in SHAPES and name not in PLANNERS and not Path(name).exists()
    given = any(key_of(override) == "model.init" for override in overrides)
    return [*chosen, "model.init=random"] if bare and not given else chosen


def _separate_folders(storage: DictConfig, folder: Path) -> None:
    """Storages on disk get a folder of their own, if they were given none."""
    for number, part in enumerate([storage, *storage.get("tiers", [])]):
        if "folder" in part and part.folder is None:
            part.folder = literal(str(folder / str(number)))
