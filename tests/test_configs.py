"""Configs: every YAML composes, every component accepts its settings, and unknown keys are refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf

from keep_agent.config.planner_factory import make_method
from keep_agent.errors import ConfigError
from memory.config.component_names import is_own
from memory.config.components import find_class
from memory.method import MEMBERS, MemoryMethod

CONFIGS = Path(__file__).parents[1] / "configs"
MAINS = [path.stem for path in sorted(CONFIGS.glob("*.yaml"))]
METHODS = [path.stem for path in sorted(CONFIGS.glob("memory/*.yaml"))]
PLANNERS = [path.stem for path in sorted(CONFIGS.glob("planner/[!_]*.yaml"))]
SCENARIOS = CONFIGS / "phases"  # no options: read by `keep-agent phases`
OPTIONS = [
    f"{path.parent.relative_to(CONFIGS)}={path.stem}"
    for path in sorted(CONFIGS.glob("*/**/[!_]*.yaml"))
    if path.parent != SCENARIOS
]
COMPOSITIONS = ("keep_contextual", "keep_latent", "memart_hops", "sparsex_hops")  # this project's own
RULERS = ("full_recompute", "full_cache")  # references of comparisons
WITHOUT_PAPER = (*RULERS, "memart", "semantic", *COMPOSITIONS)  # an anonymous submission and a report: no arXiv id
KV_PLANNERS = [name for name in PLANNERS if name not in ("expert", "random")]


@pytest.fixture(autouse=True)
def _hydra() -> Iterator[None]:
    with initialize_config_module("configs", version_base="1.3"):
        yield
    GlobalHydra.instance().clear()


def composed(*overrides: str) -> DictConfig:
    return compose("alfred", list(overrides))


@pytest.mark.parametrize("name", MAINS)
def test_every_main_composes_without_holes(name: str) -> None:
    assert not OmegaConf.missing_keys(compose(name))


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_composes(option: str) -> None:
    assert composed(option)


@pytest.mark.parametrize("name", PLANNERS)
def test_a_planner_has_its_memory_and_its_name(name: str) -> None:
    config = composed(f"planner={name}")
    assert config.planner.name == name
    assert config.get("memory", {}).get("name") == (name if name in METHODS else None)


def test_memory_swaps_the_method_alone() -> None:
    config = composed("planner=keep", "memory=full_reuse")
    assert (config.planner.name, config.memory.name) == ("keep", "full_reuse")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_names_its_paper_and_accepts_an_override(name: str) -> None:
    method = make_method(composed(f"memory={name}").memory)
    assert isinstance(method, MemoryMethod) and method.name == name
    assert method.paper or name in WITHOUT_PAPER
    ablation = make_method(composed(f"memory={name}", "memory/loading=serial").memory)
    assert type(ablation.loading).__name__ == "Serial"


def test_methods_of_a_comparison_choose_the_same_segments() -> None:
    """Methods with latent retrieval are excluded: they select blocks, not segments. So are those that are a choice."""
    configs = [composed(f"planner={name}") for name in KV_PLANNERS if name not in ("karma", "llm_planner")]
    configs = [c for c in configs if not make_method(c.memory).capabilities.latent]
    assert len(configs) > 3
    assert len({str((c.memory.retrieval, c.memory.grouping, c.prompt, c.env, c.model)) for c in configs}) == 1


def choices(stage: str) -> tuple[set[str], set[str]]:
    """Return the modules of a stage's folder with a complete class, and those with one that no other class extends."""
    names = {f"memory.{stage}.{path.stem}" for path in (CONFIGS.parent / "memory" / stage).glob("[!_]*.py")}
    kinds = {kind for name in names for kind in vars(import_module(name)).values() if is_dataclass(kind)}
    complete = {kind for kind in kinds if all(hasattr(kind, member) for member in ("capabilities", *MEMBERS[stage]))}
    bases = {base for kind in complete for base in kind.__mro__[1:]}
    return names & {kind.__module__ for kind in complete}, names & {kind.__module__ for kind in complete - bases}


@pytest.mark.parametrize("stage", ["retrieval", "construction", "recompute", "loading", "retention", "storage"])
def test_every_stage_has_a_file_for_each_of_its_classes(stage: str) -> None:
    targets = {OmegaConf.load(path)["_target_"] for path in CONFIGS.glob(f"memory/{stage}/*.yaml")}
    modules = {target.rpartition(".")[0] for target in targets}
    complete, needed = choices(stage)
    assert needed <= modules <= complete and all(is_own(target) and find_class(target) for target in targets)


@pytest.mark.parametrize("name", ["first_tokens", "value_deviation", "sparse_query", "multi_hop"])
@pytest.mark.parametrize("construction", ["per_segment", "fixed_blocks", "static_dynamic"])
def test_repairs_go_with_any_isolated_units(name: str, construction: str) -> None:
    choice = (f"memory/recompute={name}", f"memory/construction={construction}", "memory/loading=layer_balanced")
    method = make_method(composed("memory=full_reuse", *choice).memory)
    assert method.capabilities.repairs and not method.capabilities.exact


@pytest.mark.parametrize(("method", "override", "sentence"), [
    ("cacheblend", "memory.recompute.ratio=2", "ratio=2 is not a share"),
    ("cacheblend", "memory.recompute.deviation=q", "v, k, kv"),
    ("cacheblend", "memory/construction=prefix", "ValueDeviation has nothing to repair"),
    ("keep", "memory.recompute.schedule.average=7", "must be shares: use 0 to 1"),
    ("keep", "memory/construction=prefix", "nothing to repair"),
    ("keep", "+memory.colour=red", "colour"),
    ("keep", "+memory.construction.colour=red", "colour"),
])  # fmt: skip
def test_a_component_refuses_settings_in_a_sentence(method: str, override: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_method(composed(f"memory={method}", override).memory)


@pytest.mark.parametrize("override", ["env.splitt=test", "planner.budget=3", "memory.recompute.hops=2", "nonsense=1"])
def test_unknown_keys_are_refused_by_name(override: str) -> None:
    with pytest.raises(ConfigCompositionException, match=override.partition("=")[0]):
        composed(override)
