"""A planner's folder holds one checkpoint, whatever happens while the next is written."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path

import pytest
import torch

from keep_agent.errors import CapacityError, ModelError
from planners.checkpoint import HISTORY, deepen, load_planner, save_planner
from planners.packed_attention import collate
from planners.packing import Pack, Slot
from planners.train import forward

FILES = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "SHA256SUMS", HISTORY}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_checkpoint_is_the_old_one_until_all_of_the_new_one_is_written(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer, _ = load_planner(tiny_model)
    more = {"optimizer.safetensors": {"step": torch.ones(3)}}
    save_planner(model, tokenizer, {"steps": 1}, tmp_path, more)
    old = contents(tmp_path)
    assert set(old) == FILES | set(more)
    real = os.fsync
    for call in range(1, len(old) + 1):
        counter = itertools.count(1)

        def full(number: int, counter: itertools.count = counter, call: int = call) -> None:
            if next(counter) == call:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(number)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(CapacityError, match="no room for"):
                save_planner(model, tokenizer, {"steps": 2}, tmp_path, more)
        assert contents(tmp_path) == old
    (tmp_path / f".{HISTORY}.0a1b2c3d.partial").touch()  # of a trainer that was killed
    save_planner(model, tokenizer, {"steps": 2}, tmp_path, more)
    assert set(contents(tmp_path)) == set(old) and load_planner(tmp_path)[2] == {"steps": 2}


def test_a_deeper_model_says_the_same_until_it_is_trained(tiny_model: Path, tmp_path: Path) -> None:
    model, tokenizer, _ = load_planner(tiny_model)
    depth = len(model.model.layers)
    deeper = deepen(model, depth + 3)
    assert len(deeper.model.layers) == deeper.config.num_hidden_layers == depth + 3
    slot = Slot("step", tuple(range(5, 25)), tuple(range(5, 25)))
    batch = collate([Pack((("a", (7, 8, 9)),), (slot, slot))], 1, 0, torch.float32)
    with torch.no_grad():
        assert torch.equal(forward(model, batch, torch.float32)[0], forward(deeper, batch, torch.float32)[0])
    loss = forward(deeper, batch, torch.float32)[0].logsumexp(-1).sum()
    loss.backward()
    silent = [p for p in deeper.parameters() if p.ndim == 2 and not p.any()]
    assert len(silent) == 2 * 3 and all(p.grad.any() for p in silent)  # what was added learns
    save_planner(deeper, tokenizer, {}, tmp_path)
    assert len(load_planner(tmp_path)[0].model.layers) == depth + 3
    with pytest.raises(ModelError, match="only be added"):
        deepen(deeper, depth)
