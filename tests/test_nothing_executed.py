"""Execution of data: every call that could run the content of a file is listed here with its reason.

The check reads the source: a new call fails until it is removed or listed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("envs", "memory", "planners", "keep_agent", "eval", "configs")

UNPICKLING = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle"}
CALLS = {  # ends of dotted names of calls that may run code, or load objects that do
    "eval", "exec", "compile", "__import__", "runpy.run_path", "runpy.run_module",
    "import_module", "importlib.import_module", "spec_from_file_location",
    "instantiate", "get_class", "get_method", "get_object", "hydra.utils.call", "pydoc.locate",
    "register_new_resolver", "OmegaConf.create", "OmegaConf.load", "as_config",
    "torch.load", "torch.jit.load", "torch.hub.load", "np.load", "numpy.load", "np.fromfile",
    "yaml.load", "yaml.unsafe_load", "yaml.full_load",
    "os.system", "os.popen", "os.execv", "os.execvp", "os.spawnv", "os.posix_spawn",
    "subprocess.run", "subprocess.Popen", "subprocess.call", "subprocess.check_output", "Popen",
    "jinja2.Template", "jinja2.Environment", "Environment",
    "format_map", "str.format",
}  # fmt: skip
METHODS = ("format_map", "instantiate", "get_class", "get_method", "import_module", "spec_from_file_location")
LOADERS = ("from_pretrained", "SentenceTransformer")  # must not run a model's own code
JUSTIFIED = {
    ("envs/worlds.py", "import_module"): "names of our own table; another env.id is refused",
    ("keep_agent/__init__.py", "import_module"): "names of our own table",
    ("keep_agent/cli.py", "import_module"): "names of our own table of commands",
    ("keep_agent/robots/ros/ros1_messages.py", "import_module"): "names of ROS packages that our code asks for",
    ("keep_agent/robots/ros2.py", "import_module"): "names of ROS packages that our code asks for",
    ("keep_agent/robots/command.py", "import_module"): "MODULE:FUNCTION of the command line, which is the user's",
    ("memory/config/components.py", "import_module"): "classes of a composed config; saved ones are checked before",
    ("memory/retention/train.py", "runpy.run_module"): "the former name of our own command",
    ("keep_agent/config/literal.py", "OmegaConf.create"): "every interpolation in the values is escaped",
    ("eval/common/hydra_command.py", "OmegaConf.load"): "our own configs/eval/default.yaml",
    ("eval/common/resume.py", "as_config"): "a saved config, whose classes are checked before",
    ("eval/workers/processes.py", "as_config"): "the config of the process that started this one",
    ("eval/workers/ray_actors.py", "as_config"): "the config of the process that started this one",
    ("keep_agent/files.py", "yaml.load"): "with SafeLoader, or the loader of scenarios, which is derived from it",
    ("eval/suite/page.py", "subprocess.run"): "modules of this project (eval/suite/plan.py)",
    ("envs/wah/language/phrases.py", "?.format_map"): "our own forms of sentences",
}


def sources() -> list[Path]:
    return sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))


def dotted(node: ast.expr) -> str:
    """Return the name of a call: ``torch.load``; ``?`` stands for an owner without a name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return "?"


def is_risky(name: str) -> bool:
    """Return whether a call is risky: a bare ``eval`` is, a model's ``module.eval()`` is not."""
    return name in CALLS or name.rpartition(".")[2] in METHODS


def risky(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and is_risky(name := dotted(node.func)):
            yield name


def test_risky_calls_are_justified() -> None:
    calls = {(str(path.relative_to(ROOT)), name) for path in sources() for name in risky(path)}
    assert calls - JUSTIFIED.keys() == set(), "remove these calls, or say in JUSTIFIED why they are safe"
    assert JUSTIFIED.keys() - calls == set(), "these calls do not exist; remove them from the list"


@pytest.mark.parametrize("room", ROOMS)
def test_nothing_is_unpickled(room: str) -> None:
    for path in (ROOT / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            wrong = {name for name in names if name.partition(".")[0] in UNPICKLING}
            assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


def loads_code(call: ast.Call) -> bool:
    """Return whether a loader's call may run a model's own code, or ask the user about it."""
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if any(keyword.arg is None for keyword in call.keywords) and "trust_remote_code" not in keywords:
        return not any(isinstance(keyword.value, ast.Name) and keyword.value.id == "SAFE" for keyword in call.keywords)
    value = keywords.get("trust_remote_code")
    return not (isinstance(value, ast.Constant) and value.value is False)


def test_no_models_own_code_is_run() -> None:
    from memory.segments.sentence_encoder import SAFE

    assert SAFE["trust_remote_code"] is False and SAFE["model_kwargs"]["use_safetensors"] is True
    called = 0
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_partial = isinstance(node, ast.Call) and dotted(node.func) == "partial" and node.args
            target = node.args[0] if is_partial else getattr(node, "func", None)
            if isinstance(node, ast.Call) and dotted(target).rpartition(".")[2] in LOADERS:
                called += 1
                assert not loads_code(node), f"{path.relative_to(ROOT)}:{node.lineno} needs trust_remote_code=False"
    assert called >= 4


def test_the_check_detects_risky_calls(tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text(
        "import torch\nfrom hydra.utils import instantiate\neval(x)\nmodel.eval()\ntorch.load(f)\ninstantiate(c)\n"
    )
    assert list(risky(file)) == ["eval", "torch.load", "instantiate"]
