"""Light commands: help, lists and refusals of invalid settings load no torch."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib

import pytest
from hydra import compose, initialize_config_module

from keep_agent.cli import EXACT_METHODS
from keep_agent.config.planner_factory import make_method
from tests.test_imports import ROOT

RUN = """
import contextlib, io, json, runpy, sys
from importlib.machinery import ModuleSpec

class Heavy:  # in the place of torch and transformers: cannot be imported, and records attempts
    def __init__(self):
        self.attempts = []

    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name in ("torch", "transformers") else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        self.attempts.append(module.__name__)
        raise ImportError(module.__name__)

def run(module, *words):
    sys.argv, heavy.attempts, output, code = [module, *words], [], io.StringIO(), 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            code = end.code or 0
        except Exception as error:  # of what is imported without them
            output.write(repr(error))
    return code, heavy.attempts, output.getvalue()

heavy = Heavy()
sys.meta_path.insert(0, heavy)
print(json.dumps([run(*words) for words in json.load(sys.stdin)]))
"""
Answer = tuple[int, list[str], str]
Answers = dict[tuple[str, str], Answer]  # by command and words


def documented() -> list[str]:
    """Return the modules of the installed commands and of those in the docs (``python -m``), without robot bridges."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    text = "".join(page.read_text() for page in pages)
    in_docs = re.findall(r"python -m ((?:eval|memory|planners)[.a-z_]*\.[a-z_]+)", text)
    return sorted({main.partition(":")[0].removesuffix(".__main__") for main in scripts.values()}.union(in_docs))


HELP = [
    ("--help", "methods"), ("methods", "staticdynamic"), ("methods --help", "List the memory methods"),
    ("phases", "handover"), ("phases --help", "scenario"), ("serve --help", "KEY=VALUE"), ("token --help", "token"),
    ("view --help", "RUN"),
]  # fmt: skip
MISTYPED = [
    ("eval.alfred", "planer=keep", "'planner'"), ("eval.alfred", "+planer=keep", "'planner'"),
    ("eval.alfred", "++env.skils=grounded", "'env.skills'"), ("eval.alfred", "env.skils=grounded", "'env.skills'"),
    ("eval.alfred", "env.skills=grouded", "'grounded'"), ("eval.alfred", "eval.episodez=3", "'eval.episodes'"),
    ("eval.alfred", "planner=kep", "'keep'"), ("eval.alfred", "prompt.style=link", "'linked'"),
    ("eval.alfred", "model=planner-tin", "'planner-tiny'"), ("eval.alfred", "memory/recompute=mult_hop", "'multi_hop'"),
    ("eval.alfred", "env.frames=true", "'eval.frames'"), ("eval.wah", "env.rules=strickt", "'strict'"),
    ("eval.alfworld", "env.scored=finaly", "'final'"), ("eval.latency", "latency.planer=[keep]", "'latency.planners'"),
    ("eval.locomo", "planner=kep", "'keep'"), ("eval.suite", "semantik", "'semantic'"),
    ("eval.suite", "blocks --data . model=planner-tin", "'planner-tiny'"),
    ("keep_agent.cli", "phases handover model=planner-tin", "'planner-tiny'"),
    ("keep_agent.cli", "phases handovr", "'handover'"), ("keep_agent.cli", "serve --port 0 planer=keep", "'planner'"),
    ("keep_agent.cli", "serve --port 0 prompt.style=link", "'linked'"),
    ("keep_agent.cli", "serve --port 0 model=planner-tin", "'planner-tiny'"),
]  # fmt: skip


WORDS = ("--help", "--nosuch", "planer=keep")  # every command prints its help, and refuses the others
NEEDED = {"eval.sessions": ["--out", "sessions.jsonl"]}  # options without which a command does not check settings
MORE = [
    ("eval.fidelity", "planner=kep", "'keep'"), ("eval.fidelity", "planner=keep planer=keep", "'planner'"),
    ("eval.fidelity", "planner=keep prompt.style=link", "'linked'"),
    ("eval.fidelity", "planner=keep env.skils=grounded", "'env.skills'"),
    ("eval.fidelity", "--families qwen33", "'qwen3'"), ("eval.pipeline", "--device a600", "a6000"),
    ("eval.pipeline", "--link pcie", "pcie4"), ("eval.pipeline", "--loading seriel", "serial"),
    ("eval.pipeline", "--model qwen2.5-14", "qwen2.5-14b"), ("eval.recall", "--methods kep", "'keep'"),
    ("eval.recall", "--methods keep model=planner-tin", "'planner-tiny'"),
    ("eval.recall", "--methods keep memory.groupin.bound=3", "'memory.grouping.bound'"),
    ("eval.retention", "--methods h20", "'h2o'"),
    ("eval.sessions", "--out sessions.jsonl env.observability=partail", "'partial'"),
    ("eval.sessions", "--out sessions.jsonl +planer=keep", "'planner'"),
    ("planners.train", "--data x --out y --precision float23", "'float32'"), ("keep_agent.cli", "servee", "'serve'"),
    ("eval.fidelity", "planner=keep --reach 101", "percent above 0, up to 100"),
    ("eval.fidelity", "planner=keep,kep", "'keep'"),
]  # fmt: skip
REMEDIES = {  # text in the refusal: words that are refused with it
    "choose one of": "memory=null engine=null planner=null env=null eval=null planner=[keep] ~memory ~planner",
    "env.split=VALUE": "~env.split",
    "memory/recompute=": "~memory.recompute memory.recompute=null",
    "env.thor.NAME=VALUE": "env.thor=5",
    "hydra.KEY=VALUE": "hydra=5",
    "planner='kéep'": "planner=kéep",
    "correct the value": "eval.seed=${nope}",
    "methods of a stage": "memory.recompute._target_=os.system",
    "memory.method.MemoryMethod": "memory._target_=5",
    " does not work; give text": "prompt.encoder=null prompt.encoder=",
    "eval.resume='5'": "eval.resume=5",
    "eval.resume=true does not work; give text or null": "eval.resume=true",
    "eval.threads=99999999999 is too many; give 4096 at most": "eval.threads=99999999999",
    "model.device=nope is not a device; give auto, cpu, cuda": "model.device=nope",
    "prompt.encoder=hasht is none of auto, ": "prompt.encoder=hasht",
    "did you mean 'hashed'": "prompt.encoder=hashd",
}
IMPOSSIBLE = [
    *(("eval.alfred", words, text) for text, settings in REMEDIES.items() for words in settings.split()),
    ("eval.wah", "env.data=5", "give text or null"),
    ("eval.latency", "latency.planners=5", "give a list or text"),
    ("eval.latency", "latency.planners=[keep,kep]", "did you mean 'keep'"),
    ("eval.latency", "latency.models=qwen2.5-0.5", "did you mean 'qwen2.5-0.5b'"),
    ("eval.locomo", "data=5", "give text or null"),
    ("keep_agent.cli", "phases handover eval.out=5", "give text"),
    ("keep_agent.cli", "serve --port 0 planner=random", "such as keep"),
    ("keep_agent.cli", "serve --port 0 prompt.encoder=null", "give text"),
    ("keep_agent.cli", "serve --port 0 eval.threads=99999999999", "4096 at most"),
    ("keep_agent.cli", "serve --port 0 --agents 0", "agents=0"),
    ("keep_agent.cli", "serve --port 0 --things 99999999999999999999", "from 1 to"),
]


INVALID = [*((module, words, f"did you mean {name}?") for module, words, name in MISTYPED), *MORE, *IMPOSSIBLE]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Return exit code, attempted imports of torch and transformers, and output by command and words; one process."""
    calls = [(module, word, [*NEEDED.get(module, []), word]) for module in documented() for word in WORDS]
    calls += [(module, words, words.split()) for module, words, *_ in INVALID]
    calls += [("keep_agent.cli", words, words.split()) for words, _ in HELP]
    empty = tmp_path_factory.mktemp("commands")
    done = subprocess.run(
        [sys.executable, "-c", RUN], input=json.dumps([[module, *words] for module, _, words in calls]),
        cwd=empty, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not list(empty.iterdir()), "none of them leaves anything behind"
    pairs = zip(calls, json.loads(done.stdout), strict=True)
    return {(module, words): tuple(answer) for (module, words, _), answer in pairs}


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("module", documented())
def test_no_command_loads_torch_for_help_and_mistyped_words(answers: Answers, module: str, word: str) -> None:
    code, loaded, output = answers[module, word]
    assert (code, loaded) == (0 if word == "--help" else 2, []), output


@pytest.mark.parametrize(("words", "text"), HELP)
def test_help_and_lists_load_no_torch(answers: Answers, words: str, text: str) -> None:
    code, loaded, output = answers["keep_agent.cli", words]
    assert (code, loaded) == (0, []) and text.lower() in output.replace("\n", "").lower()


@pytest.mark.parametrize(("module", "words", "text"), INVALID, ids=[f"{m} {w}" for m, w, _ in INVALID])
def test_an_invalid_setting_is_refused_in_one_line(answers: Answers, module: str, words: str, text: str) -> None:
    code, loaded, output = answers[module, words]
    assert (code, loaded) == (2, []) and text in output
    assert (module, words, text) in MORE or (output.startswith("error: ") and output.count("\n") == 1)


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("robots", ["torch", "transformers", "rospy", "roslibpy", "rclpy", "mcap"]),
        ("viewer.pages viewer.json_routes", ["torch"]),
        ("viewer.server viewer.command viewer.export.html viewer.export.rrd viewer.step_model", ["torch", "nicegui"]),
        ("viewer.export.rrd viewer.runs viewer.episode_filters", ["rerun"]),
    ],
)
def test_heavy_libraries_are_imported_late(modules: str, heavy: list[str]) -> None:
    imported = ", ".join(f"keep_agent.{name}" for name in modules.split())
    code = f"import sys, {imported}; print({{*sys.modules}} & {{*{heavy}}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_table_of_methods_has_the_methods_capabilities() -> None:
    with initialize_config_module("configs", version_base="1.3"):
        for path in (ROOT / "configs" / "memory").glob("*.yaml"):
            method = make_method(compose("alfred", [f"memory={path.stem}"]).memory)
            assert method.capabilities.exact == (path.stem in EXACT_METHODS), path.stem
