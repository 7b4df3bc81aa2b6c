"""Hostile files for every command that reads files of other users: no command executes the code that they name.

A new command fails `test_every_command_is_listed` until it is listed in READS with its arguments, or in READS_NONE.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from eval.chat.rows import AnswerFolder
from eval.latency.machine import this_machine
from eval.latency.report.rows import LatencyFolder
from keep_agent.cli import COMMANDS
from keep_agent.guard import BAD_INPUT
from keep_agent.rollout.run_folder import RunFolder
from keep_agent.rollout.trace import read_trace
from tests.eval.workers.runs import Command

ROOT = Path(__file__).resolve().parents[3]
QUICK = ("prompt.encoder=hashed", "eval.episodes=1", "eval.threads=1", "eval.progress=false")
CELLS = ("latency.segments=4", "latency.segment_tokens=8", "latency.churn=1", "latency.steps=3", "latency.plot=false")


def hostile_node(mark: Path) -> dict[str, Any]:
    """Return a config node with which Hydra's `instantiate` would create the file ``mark``."""
    return {"_target_": "pathlib.Path.touch", "self": {"_target_": "pathlib.Path", "_args_": [str(mark)]}}


def in_a_stage(config: dict[str, Any], mark: Path) -> None:
    config["memory"]["loading"] = hostile_node(mark)


def in_a_part(config: dict[str, Any], mark: Path) -> None:
    config["memory"]["storage"] = {"_target_": "memory.storage.tiers.Tiers", "tiers": [hostile_node(mark)]}


def as_an_argument(config: dict[str, Any], mark: Path) -> None:
    config["memory"]["grouping"]["window"] = hostile_node(mark)


def in_every_part(config: dict[str, Any], mark: Path) -> None:
    in_a_stage(config, mark)
    for part in ("planner", "prompt", "model", "engine"):
        if part in config:
            config[part] |= {**hostile_node(mark), "part": hostile_node(mark)}


@cache
def config_of(command: str, *overrides: str) -> dict[str, Any]:
    with initialize_config_module("configs", version_base="1.3"):
        plain = OmegaConf.to_container(compose(command, list(overrides)), resolve=True)
    return {key: value for key, value in plain.items() if key != "hydra"}


Spoil = Callable[[dict[str, Any], Path], None]


class Files:
    """Factory of hostile files in one folder."""

    def __init__(self, folder: Path, spoil: Spoil) -> None:
        self.folder, self.mark, self._spoil = folder, folder / "EXECUTED", spoil

    def run(self, command: str = "alfred", kind: type[RunFolder] = RunFolder, **more: Any) -> str:
        """Make the run folder of an interrupted command."""
        quick = {"alfred": QUICK, "wah": QUICK, "alfworld": QUICK, "latency": (*CELLS, "prompt.encoder=hashed")}
        config = deepcopy(config_of(command, *quick.get(command, ()))) | more
        self._spoil(config, self.mark)
        run = kind.create(self.folder / f"{command}-run", config)
        run.release()
        return str(run.path)

    def finished_run(self, shard: str | None = None) -> str:
        """Make the run folder of a finished run with a hostile config."""
        source = next((self.folder / "real").glob("*"))
        config = json.loads((source / "config.json").read_text())
        config |= {"memory": deepcopy(config_of("alfred")["memory"]), "eval": config["eval"] | {"shard": shard}}
        self._spoil(config, self.mark)
        run = RunFolder.create(self.folder / "played", config)
        (result,) = RunFolder.read(source)
        run.commit(result, read_trace(source / "trace.jsonl"))
        run.write_summary({**json.loads((source / "summary.json").read_text()), "config": config})
        run.release()
        return str(run.path)

    def file(self, name: str, text: str) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    def node(self, name: str) -> str:
        """Make a JSON file of hostile nodes."""
        return self.file(name, json.dumps({**hostile_node(self.mark), "config": hostile_node(self.mark)}))

    def yaml(self, name: str) -> str:
        code = f"!!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path ['{self.mark}']]"
        return self.file(name, f"title: {code}\nabout: x\nname: {code}\n")


Factory = Callable[[Spoil], Files]


def lines(files: Files, *arguments: str) -> list[str]:
    """Return the arguments of a command that continues a file of lines with hostile settings."""
    files.node("lines.jsonl.json")
    return [*arguments, "--out", files.file("lines.jsonl", ""), "eval.episodes=1", "prompt.encoder=hashed"]


def page(files: Files) -> list[str]:
    text = (
        "title: a\nabout: b\nrows:\n  keep: planner=keep prompt.encoder=hashed eval.threads=1\n"
        "settings:\n  generated: {title: c, overrides: eval.episodes=1 eval.progress=false}\n"
    )
    place = files.folder / "suite" / "mine" / "generated"
    place.mkdir(parents=True)
    Path(files.run()).rename(place / "keep")
    return [files.file("mine.yaml", text), "--out", str(place.parents[1]), "--pages", str(files.folder / "pages")]


READS: Mapping[str, Callable[[Files], list[str]]] = {
    "keep-eval-alfred": lambda files: [f"eval.resume={files.run()}"],
    "keep-eval-wah": lambda files: [f"eval.resume={files.run('wah')}"],
    "keep-eval-alfworld": lambda files: [f"eval.resume={files.run('alfworld')}"],
    "keep-eval-locomo": lambda files: [f"eval.resume={files.run('locomo', AnswerFolder)}"],
    "keep-eval-latency": lambda files: [
        f"eval.resume={files.run('latency', LatencyFolder, overrides=[], machine=asdict(this_machine()))}"
    ],
    "keep-eval-anatomy": lambda files: [files.finished_run()],
    "keep-eval-compare": lambda files: [files.finished_run()],
    "keep-eval-merge": lambda files: [files.finished_run("0/1"), "--out", str(files.folder / "merged")],
    "keep-eval-isolation": lambda files: ["--out", files.run(), "--lines", "12", "--memories", "1", "--questions", "1"],
    "keep-eval-recall": lambda files: ["--out", files.run(), "--methods", "keep", "--trials", "1"],
    "keep-eval-retention": lambda files: lines(files),
    "keep-eval-sessions": lambda files: lines(files),
    "keep-eval-suite": page,
    "keep-eval-pipeline": lambda files: ["--times", files.node("times.json")],
    "keep-eval-dataset": lambda files: ["--out", str(Path(files.node("out/rollouts.json")).parent), "--houses", "0"],
    "keep-agent view": lambda files: ["view", files.finished_run(), "--html", str(files.folder / "page.html")],
    "keep-agent phases": lambda files: ["phases", files.yaml("scenario.yaml")],
    "keep-agent token": lambda files: ["token", "me", "--file", files.node("tokens.json")],
}
READS_NONE = {
    "keep-eval-games": "generated houses only",
    "keep-eval-fidelity": "generated prompts only; of models see test_nothing_executed",
    "keep-train-planner": "rollouts are JSON lines, checkpoints safetensors and JSON",
    "keep-train-retention": "the same",
    "keep-agent methods": "reads only the package's configs",
    "keep-agent serve": "memories are JSON with a checksum, and safetensors",
}


def scripts() -> dict[str, str]:
    """Return the project's commands with their main functions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    commands = dict(project["scripts"])
    commands |= {f"keep-agent {name}": commands["keep-agent"] for name in COMMANDS}
    del commands["keep-agent"]
    return commands


def test_every_command_is_listed() -> None:
    assert scripts().keys() == READS.keys() | READS_NONE.keys()
    assert not READS.keys() & READS_NONE.keys()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Play a run of one short episode."""
    from eval.common.run import evaluate
    from eval.common.tables import make_console

    folder = tmp_path_factory.mktemp("real") / "run"
    with initialize_config_module("configs", version_base="1.3"):
        config = compose("alfred", ["planner=random", "env.max_steps=2", *QUICK])
    evaluate(config, folder, make_console())
    return folder


@pytest.fixture
def files(tmp_path: Path, real: Path) -> Factory:
    def make(spoil: Spoil) -> Files:
        (tmp_path / "real").mkdir()
        (tmp_path / "real" / "run").symlink_to(real)
        return Files(tmp_path, spoil)

    return make


def call_command(call: Command, name: str, arguments: list[str]) -> tuple[int, str]:
    module, _, function = scripts()[name].partition(":")

    def main() -> None:
        getattr(import_module(module), function)()
        sys.exit(0)  # some commands exit by themselves

    code, _, err = call(main, *arguments)
    return code, err


@pytest.mark.parametrize("name", READS)
def test_no_command_executes_code_of_its_files(call: Command, name: str, files: Factory) -> None:
    hostile = files(in_every_part)
    code, err = call_command(call, name, READS[name](hostile))
    assert not hostile.mark.exists()
    assert code in (0, BAD_INPUT) and "Traceback" not in err, err


RESUMED = [name for name, arguments in READS.items() if "eval.resume=" in str(arguments.__code__.co_consts)]


@pytest.mark.parametrize("spoil", [in_a_stage, in_a_part, as_an_argument], ids=lambda spoil: spoil.__name__)
@pytest.mark.parametrize("name", RESUMED)
def test_a_hostile_class_of_a_resumed_run_is_named(call: Command, name: str, spoil: Spoil, files: Factory) -> None:
    hostile = files(spoil)
    code, err = call_command(call, name, READS[name](hostile))
    assert code == BAD_INPUT and "names 'pathlib.Path" in err and "command line" in err, err
    assert not hostile.mark.exists()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("overrides", ["memory.loading._target_=os.system"], "os.system"),
        ("overrides", ["+memory.colour={_target_: os.system, command: ls}"], "os.system"),
        ("planners", ["keep+memory.loading._target_=os.system"], "os.system"),
        ("overrides", ["prompt.start=${oc.env:HOME}"], "are not resolved"),
    ],
)
def test_saved_overrides_are_checked(call: Command, key: str, value: list[str], words: str, files: Factory) -> None:
    saved = {"overrides": [], "machine": asdict(this_machine())}

    def spoil(config: dict[str, Any], mark: Path) -> None:
        (config if key == "overrides" else config["latency"])[key] = value

    folder = files(spoil).run("latency", LatencyFolder, **saved)
    code, err = call_command(call, "keep-eval-latency", [f"eval.resume={folder}"])
    assert code == BAD_INPUT and words in err, err


def test_a_run_chooses_no_program(call: Command, files: Factory) -> None:
    def spoil(config: dict[str, Any], mark: Path) -> None:
        config["env"] |= {"backend": "thor", "thor": config["env"]["thor"] | {"executable": f"touch {mark}"}}

    hostile = files(spoil)
    code, err = call_command(call, "keep-eval-alfred", [f"eval.resume={hostile.run()}"])
    assert code == BAD_INPUT and "env.thor.executable" in err and "on the command line" in err, err
    assert not hostile.mark.exists()


def test_a_page_runs_only_commands_of_the_project(call: Command, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("title: a\nabout: b\ncommands:\n  c: http.server 0\n")
    code, err = call_command(call, "keep-eval-suite", [str(file)])
    assert code == BAD_INPUT and "http.server 0" in err and "eval.NAME" in err


def test_interpolations_are_not_resolved(call: Command, files: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "revealed")

    def spoil(config: dict[str, Any], mark: Path) -> None:
        config["planner"] = {"name": "${oc.env:SECRET}", "kind": "random"}
        config["memory"]["paper"] = "\\${oc.env:SECRET}"

    hostile = files(spoil)
    folder = Path(hostile.run())
    code, err = call_command(call, "keep-eval-alfred", [f"eval.resume={folder}"])
    assert code == 0, err
    summary = (folder / "summary.json").read_text()
    assert "revealed" not in summary and json.loads(summary)["config"]["planner"]["name"] == "${oc.env:SECRET}"


def test_a_custom_class_must_be_named_on_the_command_line(call: Command, files: Factory) -> None:
    """The command line may name any class with a stage's methods; a run folder alone may not."""

    def spoil(config: dict[str, Any], mark: Path) -> None:
        config["memory"]["loading"] = {"_target_": "tests.memory.config.test_components.Mine"}

    folder = files(spoil).run()
    code, err = call_command(call, "keep-eval-alfred", [f"eval.resume={folder}"])
    assert code == BAD_INPUT and "memory.loading._target_=tests.memory.config.test_components.Mine" in err
    again = "memory.loading._target_=tests.memory.config.test_components.Mine"
    code, err = call_command(call, "keep-eval-alfred", [f"eval.resume={folder}", again, "model=some/where"])
    assert code == BAD_INPUT and "model.name=some/where (was planner-tiny)" in err, err
