"""Imports: one direction between folders, checked on the source; environments never load torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("envs", "memory", "planners", "keep_agent", "eval", "configs")
ALLOWED = {
    "envs": {"envs"},
    "memory": {"memory"},
    "planners": {"planners", "memory"},
    "keep_agent": {"keep_agent", "planners", "memory", "envs"},
    "eval": {"eval", "keep_agent", "planners", "memory", "envs", "configs"},
    "configs": set(),
}
LEAVES = {f"keep_agent.{name}" for name in ("errors", "files", "options", "startup")}
STAGES = ("construction", "retrieval", "recompute", "loading", "retention", "storage")
STAGE_MAY = tuple(
    f"memory.{name}" for name in ("stages", "segments", "kv_cache", "files", "prompt", "engine", "config.choices")
)
MAPPING = {"safetensors.safe_open", "safetensors.torch.load_file", "safetensors.torch.load_model"}  # map files


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """Yield the absolute names of all imported modules, in functions and TYPE_CHECKING blocks too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_of(name: str) -> str:
    """Return the module of an imported name: ``memory.kv_cache.block.KVBlock`` -> ``memory.kv_cache.block``."""
    parts = name.split(".")
    while len(parts) > 1 and not (ROOT.joinpath(*parts).with_suffix(".py").exists() or ROOT.joinpath(*parts).is_dir()):
        parts.pop()
    return ".".join(parts)


def project_modules(path: Path) -> set[str]:
    return {module_of(name) for name in imports(path) if name.split(".")[0] in ROOMS} - LEAVES


def check(folder: str, names: Callable[[Path], Iterable[str]], is_wrong: Callable[[str], bool]) -> None:
    for path in sources(folder):
        wrong = sorted(filter(is_wrong, set(names(path))))
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_one_way(room: str) -> None:
    check(room, project_modules, lambda name: name.split(".")[0] not in ALLOWED[room])


@pytest.mark.parametrize("leaf", sorted(LEAVES))
def test_a_leaf_imports_no_other_module_of_the_project(leaf: str) -> None:
    assert not project_modules(ROOT.joinpath(*leaf.split(".")).with_suffix(".py"))


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_never_imports_another_stage(stage: str) -> None:
    allowed = (f"memory.{stage}.", *STAGE_MAY)
    check(f"memory/{stage}", project_modules, lambda name: not name.startswith(allowed))


def test_the_engine_knows_stages_only_as_protocols() -> None:
    check("memory/engine", project_modules, lambda name: name.split(".")[1] in STAGES)


@pytest.mark.parametrize("room", ["memory", "eval", "keep_agent"])
def test_only_the_engine_touches_transformers_models(room: str) -> None:
    def outside(path: Path) -> Iterable[str]:
        return () if "engine" in path.parts else imports(path)

    check(room, outside, lambda name: name.startswith(("transformers.models", "transformers.modeling")))


def test_trainers_never_import_worlds_or_memory() -> None:
    for name in ("train", "training/trainer"):
        path = ROOT / "planners" / f"{name}.py"
        assert {name.split(".")[0] for name in project_modules(path)} <= {"planners", "keep_agent"}


def run_python(code: str, cwd: Path) -> str:
    """Return the standard output of a fresh interpreter."""
    result = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_every_room_imports_from_any_directory(tmp_path: Path) -> None:
    code = f"import {', '.join(ROOMS)}; print(eval.__file__, configs.__file__)"
    if not _installed():
        pytest.skip("the package is not installed in this environment")
    assert "configs" in run_python(code, tmp_path)


def _installed() -> bool:
    from importlib.metadata import PackageNotFoundError, version

    try:
        version("keep-agent")
    except PackageNotFoundError:
        return False
    return True


LEAF = """
import os, sys
modules, variables = set(sys.modules), dict(os.environ)
import keep_agent.errors
new = set(sys.modules) - modules
print(*sorted(name for name in new if name.partition(".")[0] not in sys.stdlib_module_names), os.environ == variables)
import gymnasium
print([spec.id for spec in gymnasium.registry.values() if str(spec.entry_point).startswith("envs.")])
"""


def test_importing_the_errors_runs_nothing_else() -> None:
    assert run_python(LEAF, ROOT).splitlines() == ["keep_agent keep_agent.errors True", "[]"]


@pytest.mark.parametrize("code", [
    "import gymnasium; env = gymnasium.make('{id}')",
    "import gymnasium, keep_agent.errors, envs.worlds; env = gymnasium.make('{id}')",
    "import gymnasium, envs.worlds; env = gymnasium.make('{id}')",
    "import gymnasium, envs.household; env = gymnasium.make('{id}')",
    "import envs.household; from envs.worlds import make_world; env = make_world('{id}')",
    "from envs.worlds import register_worlds; register_worlds(); import gymnasium; env = gymnasium.make('{id}')",
    "from keep_agent import Fact; import gymnasium; env = gymnasium.make('{id}')",
    "import keep_agent.errors; from envs.worlds import make_world; env = make_world('{id}')",
])  # fmt: skip
def test_a_world_is_registered_once_before_it_is_made(code: str) -> None:
    script = "import warnings; warnings.simplefilter('error'); " + code.format(id="keep_agent:WatchAndHelp-v0")
    assert run_python(f"{script}; print(env.unwrapped.spec.id)", ROOT).strip() == "WatchAndHelp-v0"


def test_making_an_environment_loads_no_torch() -> None:
    code = (
        "import sys, gymnasium; env = gymnasium.make('keep_agent:Alfred-v0'); env.reset(seed=1); "
        "print('torch' in sys.modules, 'transformers' in sys.modules, 'ai2thor' in sys.modules)"
    )
    assert run_python(code, ROOT).split() == ["False", "False", "False"]


def test_training_needs_no_more_than_its_four_libraries(tmp_path: Path) -> None:
    """The four are torch, transformers, tokenizers and safetensors, with their own dependencies."""
    absent = ("gymnasium", "hydra", "omegaconf", "wandb", "platformdirs", "sentence_transformers", "ai2thor")
    code = (
        f"import sys, runpy; sys.modules.update(dict.fromkeys({absent!r}))\n"  # importing None fails
        f"sys.path.insert(0, {str(ROOT)!r}); sys.argv = ['train', '--help']\n"
        "import planners.training.trainer\n"
        "runpy.run_module('planners.train', run_name='__main__')"
    )
    assert "--data" in run_python(code, tmp_path)


def test_files_of_tensors_are_opened_by_the_module_that_does_not_map_them() -> None:
    openers = {path.name for room in ROOMS for path in sources(room) if MAPPING & set(imports(path))}
    assert openers == {"tensor_file.py"}
