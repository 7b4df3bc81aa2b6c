"""Checkpoints: a planner's folder holds a complete one, whatever happens while the next is written."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from keep_agent.errors import CapacityError, DataError, ModelError, StorageError
from memory.engine.models.load import load_model
from planners.tiny import checkpoint as checkpoints
from planners.tiny.checkpoint import CHECKSUM_FILES, latest_checkpoint, load_planner, new_checkpoint, write_planner
from planners.tiny.growth import deepen
from planners.tiny.shape import HISTORY
from planners.training.forward import forward
from planners.training.packed_attention import collate
from planners.training.packing import PackedExample, Slot

MORE = {"optimizer.safetensors": {"step": torch.ones(3)}}
LOADED = cache(load_planner)  # loaded once: `write` overwrites all weights
FILES = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", HISTORY, *CHECKSUM_FILES, *MORE}


class Killed(BaseException):
    """Stand-in for SIGKILL: no handler cleans up after it."""


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def write(folder: Path, source: Path, step: int) -> dict[str, bytes]:
    """Write a checkpoint filled with ``step``; return the contents of the folder."""
    model, tokenizer, _ = LOADED(source)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(step)
    more = {name: {key: tensor * step for key, tensor in tensors.items()} for name, tensors in MORE.items()}
    with new_checkpoint(folder, step) as new:
        write_planner(model, tokenizer, {"progress": {"step": step}}, new, more)
    return contents(folder)


def kill_at(monkeypatch: pytest.MonkeyPatch, folder: Path, call: int) -> Callable[[], int]:
    """Stop at the ``call``-th change of the disk; return a function that counts the changes."""
    counter, number = itertools.count(1), 0

    def before(real: Callable[..., Any]) -> Callable[..., Any]:
        def stopping(*arguments: Any, **more: Any) -> Any:
            nonlocal number
            number = next(counter)
            if number >= call:
                raise Killed
            return real(*arguments, **more)

        return stopping

    for name in ("mkdir", "rename", "replace", "symlink", "symlink_to", "unlink", "rmdir", "fsync"):
        if hasattr(os, name):
            monkeypatch.setattr(os, name, before(getattr(os, name)))
    return lambda: number


def test_a_checkpoint_is_one_folder_with_links_to_its_files(tiny_model: Path, tmp_path: Path) -> None:
    assert set(write(tmp_path, tiny_model, 1)) == FILES and all((tmp_path / name).is_symlink() for name in FILES)
    assert latest_checkpoint(tmp_path) == (tmp_path / "checkpoints" / "step-1").resolve()
    for step in (2, 2, 3):
        write(tmp_path, tiny_model, step)
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"latest", "step-2-2", "step-3"}
    assert load_model(tmp_path, "float32").module.model.norm.weight[0] == 3


@pytest.mark.parametrize("begins", ["empty", "versions", "files", "copy"])
def test_a_killed_writer_leaves_the_old_checkpoint_or_a_new_one(tiny_model: Path, tmp_path: Path, begins: str) -> None:
    """Kill at every change of the disk, in a new folder, one with versions, one with plain files, and a copy of one."""
    steps = set()
    for call in itertools.count(1):
        folder = tmp_path / f"{begins} {call}"
        old = _begin(folder, tiny_model, begins)
        with pytest.MonkeyPatch.context() as patch, suppress(Killed):
            changes = kill_at(patch, folder, call)
            write(folder, tiny_model, 2)
        files, done = contents(folder), changes() < call
        step = json.loads(files[HISTORY])["progress"]["step"] if HISTORY in files else None
        steps.add(step)
        if step == 1:
            assert all(files[name] == old[name] for name in old if name not in CHECKSUM_FILES)
        checkpoint = latest_checkpoint(folder)
        assert checkpoint is not None or step is None
        if checkpoint is not None:
            model, _, history = load_planner(folder)
            step = step or 2  # a complete first version counts before there are links to it
            assert history["progress"]["step"] == step == model.model.norm.weight[0].item()
            assert float(load_file(checkpoint / "optimizer.safetensors")["step"][0]) == step
        write(folder, tiny_model, 3)  # a trainer that resumes
        assert load_planner(folder)[2] == {"progress": {"step": 3}} and set(contents(folder)) == FILES
        assert not list(folder.rglob(".*"))
        if done:
            break
    assert steps == {None if begins == "empty" else 1, 2}


def _begin(folder: Path, source: Path, begins: str) -> dict[str, bytes]:
    folder.mkdir()
    if begins == "empty":
        return {}
    first = folder if begins == "versions" else folder.with_name(f"{folder.name} first")
    write(first, source, 1)
    if begins == "files":  # as older releases wrote them
        for name in FILES - {checkpoints.STATE_CHECKSUMS}:
            shutil.copy(first / name, folder / name)
    if begins == "copy":
        shutil.copytree(first, folder, dirs_exist_ok=True)
    return contents(folder)


def test_a_full_disk_leaves_the_old_one(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, real = write(tmp_path, tiny_model, 1), os.fsync

    def full(number: int) -> None:
        if not next(counter):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(number)

    for call in range(1, len(FILES) + 1):
        counter = itertools.count(1 - call)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(CapacityError, match="no room for"):
                write(tmp_path, tiny_model, 2)
        assert contents(tmp_path) == old


def test_a_disk_without_links_is_named(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "symlink", fail)
    with pytest.raises(StorageError, match=r"cannot be written \(Operation not permitted\): .* name another place"):
        write(tmp_path, tiny_model, 2)


@pytest.mark.parametrize("name", sorted(FILES))
@pytest.mark.parametrize("damage", ["flip", "cut", "missing", "text"])
def test_a_damaged_file_is_named(tiny_model: Path, tmp_path: Path, name: str, damage: str) -> None:
    write(tmp_path, tiny_model, 1)
    file = tmp_path / "checkpoints" / "step-1" / name
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes({"flip": bytes(raw), "cut": bytes(raw[: len(raw) // 2]), "text": b"\xff\xfe"}[damage])
    with pytest.raises(ModelError) as caught:
        latest_checkpoint(tmp_path)
        load_planner(tmp_path)
    expected = name if name not in CHECKSUM_FILES else "step-1"
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_version_is_named(tiny_model: Path, tmp_path: Path) -> None:
    write(tmp_path, tiny_model, 1)
    shutil.rmtree(tmp_path / "checkpoints" / "step-1")
    with pytest.raises(DataError, match=r"latest leads to 'step-1', which does not exist; restore it"):
        latest_checkpoint(tmp_path)


def test_without_the_link_to_the_newest_version_all_are_kept(tiny_model: Path, tmp_path: Path) -> None:
    """In a copy without links a single version is the newest; of several none is guessed or removed."""
    write(tmp_path, tiny_model, 1)
    for link in [path for path in tmp_path.rglob("*") if path.is_symlink()]:
        link.unlink()
    assert latest_checkpoint(tmp_path) == (tmp_path / "checkpoints" / "step-1").resolve()
    write(tmp_path, tiny_model, 2)
    assert load_planner(tmp_path)[2] == {"progress": {"step": 2}} and set(contents(tmp_path)) == FILES
    (tmp_path / "checkpoints" / "latest").unlink()
    for use in (latest_checkpoint, load_planner, lambda folder: write(folder, tiny_model, 3)):
        with pytest.raises(DataError, match="latest, the link to the newest of step-1, step-2, is missing; make it"):
            use(tmp_path)
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"step-1", "step-2"}


def test_a_deepened_model_computes_the_same_until_it_is_trained(tiny_model: Path, tmp_path: Path) -> None:
    model, tokenizer, _ = load_planner(tiny_model)
    depth = len(model.model.layers)
    deeper = deepen(model, depth + 3)
    assert len(deeper.model.layers) == deeper.config.num_hidden_layers == depth + 3
    slot = Slot("step", tuple(range(5, 25)), tuple(range(5, 25)))
    batch = collate([PackedExample((("a", (7, 8, 9)),), (slot, slot))], 1, 0, torch.float32)
    with torch.no_grad():
        assert torch.equal(forward(model, batch, torch.float32)[0], forward(deeper, batch, torch.float32)[0])
    loss = forward(deeper, batch, torch.float32)[0].logsumexp(-1).sum()
    loss.backward()
    silent = [p for p in deeper.parameters() if p.ndim == 2 and not p.any()]
    assert len(silent) == 2 * 3 and all(p.grad.any() for p in silent)  # the new layers learn
    write_planner(deeper, tokenizer, {}, tmp_path)
    assert len(load_planner(tmp_path)[0].model.layers) == depth + 3
    with pytest.raises(ModelError, match="cannot be deepened"):
        deepen(deeper, depth)
