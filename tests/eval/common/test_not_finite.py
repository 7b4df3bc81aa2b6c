"""Law 11 in a run: logits that are not finite end it with an error, not with a success rate of 0."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from eval import alfred
from keep_agent.guard import BAD_INPUT


@pytest.fixture
def broken_model(tiny_model: Path, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(tiny_model, tmp_path / "broken"))
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "SHA256SUMS").unlink()
    return folder


@pytest.mark.parametrize("policy", ["score", "generate"])
def test_a_run_ends_with_an_error(call: Callable[..., tuple[int, str, str]], broken_model: Path, policy: str) -> None:
    setting = f"model={broken_model}", "prompt.encoder=hashed", "eval.episodes=2", f"planner.policy={policy}"
    code, out, error = call(alfred.main, "planner=keep", *setting)
    assert code == BAD_INPUT and "logits are not finite in" in error and "error: " in error
    assert "success %" not in out
    assert not list(Path("outputs").rglob("summary.json"))
