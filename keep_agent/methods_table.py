"""Table of the memory methods. Loads no torch."""

from __future__ import annotations

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from omegaconf import DictConfig
from rich.table import Table

from memory.config.component_names import STAGES

# A test makes every method and compares; making them here would load torch.
EXACT = frozenset({"full_cache", "full_recompute", "prefix_cache"})


def methods_table() -> Table:
    """The memory methods of ``configs/memory``: their choice for each of the six stages, and whether their result is
    that of plain recomputation.
    """
    table = Table(title="memory methods: memory=NAME, or planner=NAME with the prompt layout that goes with it")
    for heading in ("name", *STAGES, "layout", "paper", "result"):
        table.add_column(heading, no_wrap=heading == "name")
    for name, memory in _methods_composed().items():
        result = "exact" if name in EXACT else "approximate"
        table.add_row(name, *(_stage(memory[stage]) for stage in STAGES), memory.layout, memory.paper or "–", result)
    return table


def _methods_composed() -> DictConfig:
    """Every config of ``configs/memory`` by its name, composed at once."""
    with initialize_config_module("configs", version_base="1.3"):
        names = GlobalHydra.instance().config_loader().get_group_options("memory", ObjectType.CONFIG)
        return compose(None, [f"+memory@{name}={name}" for name in names])


def _stage(choice: DictConfig) -> str:
    return choice["_target_"].rpartition(".")[2]
