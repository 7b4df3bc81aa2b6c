"""Run folder of recall: interrupted runs resume, and an output that cannot be written is refused before the start."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from keep_agent.errors import ConfigError
from keep_agent.rollout.run_folder import read_committed
from tests.eval.recall.conftest import recall
from tests.rewriting import change_lines, change_object

OPTIONS = ("--kinds", "needle,tracking", "--cues", "after", "--segments", "8", "--trials", "2", "prompt.encoder=hashed")
METHODS = ("--methods", "full_recompute,sparsex")
ANSWERS = 2 * 2 * 2  # kinds, trials, methods


@pytest.fixture(scope="module")
def whole(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recall") / "deep" / "whole"
    recall(f"model={tiny_model}", *OPTIONS, *METHODS, "--out", str(folder))
    return folder


@pytest.fixture
def interrupted(whole: Path, tmp_path: Path) -> Path:
    """Copy a run as a kill leaves it: three answers and a half; the first is changed, to detect a recomputation."""
    folder = tmp_path / "interrupted"
    shutil.copytree(whole, folder)
    first, *lines = (whole / "probes.jsonl").read_text().splitlines(keepends=True)
    (folder / "probes.jsonl").write_text(first + "".join(lines[:2]))
    change_lines(folder / "probes.jsonl", lambda row: row.update(prefill_tokens=0.5))
    with (folder / "probes.jsonl").open("a") as stream:
        stream.write(lines[2][:40])
    for name in ("recall.json", "recall.png"):
        (folder / name).unlink()
    return folder


def test_the_same_command_resumes_the_run(tiny_model: Path, whole: Path, interrupted: Path) -> None:
    recall(f"model={tiny_model}", *OPTIONS, *METHODS, "--out", str(interrupted), "--mark", "0.5", "eval.threads=1")
    due, rows = ([line.value for line in read_committed(folder, "probes.jsonl")] for folder in (whole, interrupted))
    assert len(rows) == ANSWERS and rows[1:] == due[1:] and rows[0]["prefill_tokens"] == 0.5
    expected, actual = (json.loads((folder / "recall.json").read_text())["scores"] for folder in (whole, interrupted))
    assert actual[1:] == expected[1:]
    assert actual[0]["prefill_tokens"] == (0.5 + due[2]["prefill_tokens"]) / 2
    assert (interrupted / "recall.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--trials", "3"), r"interrupted has other settings: trials=3 \(was 2\); .*another folder"),
        (("--methods", "full_recompute"), r"methods=\['full_recompute'\] \(was \['full_recompute', 'sparsex'\]\)"),
        (("prompt.start=next",), r"overrides=\[.*prompt.start=next.*\] \(was"),
    ],
)
def test_other_settings_are_refused(
    tiny_model: Path, interrupted: Path, arguments: tuple[str, ...], message: str
) -> None:
    before = (interrupted / "probes.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=message):
        recall(f"model={tiny_model}", *OPTIONS, *METHODS, *arguments, "--out", str(interrupted))
    assert (interrupted / "probes.jsonl").read_bytes() == before


@pytest.mark.usefixtures("garbage_stays")
@pytest.mark.parametrize("part", ["configs", "weights"])
def test_a_run_with_other_defaults_or_weights_is_not_resumed(tiny_model: Path, interrupted: Path, part: str) -> None:
    def change(saved: dict[str, Any]) -> None:
        if part == "configs":
            saved["configs"]["sparsex"]["memory"]["recompute"]["share"] = 0.9
        else:
            saved["weights"] = f"f{saved['weights']}"

    change_object(interrupted / "config.json", change)
    message = {"configs": r"sparsex.memory.recompute.share=0.04 \(was 0.9\)", "weights": "other weights"}[part]
    for _ in range(2):  # the first refusal must release the folder
        with pytest.raises(ConfigError, match=message):
            recall(f"model={tiny_model}", *OPTIONS, *METHODS, "--out", str(interrupted))


def test_a_folder_of_another_command_is_left_unchanged(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "probes.jsonl").write_text('{"f1": 1')
    with pytest.raises(ConfigError, match=r"probes.jsonl without config.json"):
        recall(f"model={tiny_model}", *OPTIONS, *METHODS, "--out", str(tmp_path))
    (tmp_path / "config.json").write_text('{"planner": {}}')
    with pytest.raises(ConfigError, match="another command"):
        recall(f"model={tiny_model}", *OPTIONS, *METHODS, "--out", str(tmp_path))
    assert (tmp_path / "probes.jsonl").read_text() == '{"f1": 1'


def test_missing_matplotlib_is_reported_before_any_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"keep-agent\[plot\]"):
        recall("model=no-such/model", *OPTIONS, *METHODS, "--out", str(tmp_path))
