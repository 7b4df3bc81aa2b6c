"""Disk storage that is damaged, full, or killed during a write: never wrong numbers."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from keep_agent.errors import CapacityError
from memory.files import atomic
from memory.kv_cache.block_store import identity
from memory.kv_cache.packed_rows import DamagedError
from tests.memory.storage.disks import block, filled, flip, only_file, open_disk, same
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("bits", [None, 4])
def test_a_flipped_bit_is_a_reported_miss(tmp_path: Path, bits: int | None, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, bits=bits)
    truth = open_disk(tmp_path, bits=bits)
    expected = {str(n): truth.get(str(n)) for n in range(40)}
    raw, path, rng = only_file(tmp_path).read_bytes(), only_file(tmp_path), random.Random(0)
    places = [*rng.sample(range(8 * len(raw)), 60), 0, 8 * len(raw) - 1, *rng.sample(range(8 * 3000), 15)]
    whole = 0
    for place in places:
        path.unlink()
        path.write_bytes(raw)
        flip(path, place)
        caplog.clear()
        disk = open_disk(tmp_path, bits=bits)
        losses = 0
        for name, e in expected.items():
            stored = disk.get(name)
            try:
                assert stored is None or all(torch.equal(a[:], b[:]) for a, b in ((stored.k, e.k), (stored.v, e.v)))
                losses += stored is None
            except DamagedError as error:
                assert error.identity == name and "computed " in str(error)
                losses += disk.get(name) is None
        assert losses and disk.stats()["corrupt"] == (1 if losses == 40 else losses)
        assert "computed " in caplog.text and str(path) in caplog.text
        whole += losses == 40
        if place == places[-1]:
            disk.put(block("new"))
            disk.flush()
            assert open_disk(tmp_path, bits=bits).contains("new")
    assert 0 < whole < len(places)


def test_a_flush_drops_damaged_blocks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocks = filled(tmp_path)
    path = only_file(tmp_path)
    flip(path, 8 * (path.stat().st_size - 100))  # in the last page
    disk = open_disk(tmp_path)
    disk.put(block("new"))
    with caplog.at_level(logging.WARNING):
        disk.flush()
    losses = disk.stats()["corrupt"]
    again = open_disk(tmp_path)
    assert 0 < losses < 40 and again.stats()["blocks"] == 41 - losses and disk.stats()["blocks"] == 41 - losses
    assert all(same(again.get(entry.key), blocks[entry.key]) for entry in again.entries()[:-1])
    assert caplog.text.count("is lost") == losses


def test_intact_layers_are_served_until_a_damaged_one_is_read(tmp_path: Path) -> None:
    blocks, path = filled(tmp_path), only_file(tmp_path)
    flip(path, 8 * (path.stat().st_size - 1))  # values of the last layer
    disk = open_disk(tmp_path)
    last = disk.get("39")
    assert torch.equal(last.k[:2], blocks["39"].k[:2]) and disk.stats()["corrupt"] == 0
    with pytest.raises(DamagedError, match="block 39 is lost"):
        last.k[2]
    assert disk.stats()["corrupt"] == 1 and disk.get("39") is None and not disk.contains("39")
    with pytest.raises(DamagedError):
        last.v[-1]
    assert disk.stats()["corrupt"] == 1, "counted once"
    with pytest.raises(DamagedError):
        disk.get("38").k[2]
    assert disk.stats()["corrupt"] == 2
    disk.put(blocks["39"])
    with pytest.raises(DamagedError):
        last.part(0, 1).v[:]
    assert same(disk.get("39"), blocks["39"]), "the new block is intact"
    assert disk.contains("37") and not disk.verify("37") and not disk.contains("37") and disk.verify("1")


@pytest.mark.parametrize("length", [0, 7, 500, -1])
def test_a_truncated_file_is_ignored(tmp_path: Path, length: int) -> None:
    filled(tmp_path)
    path = only_file(tmp_path)
    raw = path.read_bytes()[:length]
    path.unlink()
    path.write_bytes(raw)
    disk = open_disk(tmp_path)
    assert disk.stats()["corrupt"] == 1 and not disk.entries() and disk.get("1") is None


def test_a_full_disk_is_an_error_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks, disk = filled(tmp_path), open_disk(tmp_path)
    disk.put(block("new"))

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(CapacityError, match="No space left"):
        patch.setattr(atomic.os, "fsync", full)
        disk.flush()
    assert same(disk.get("new"), block("new")) and same(disk.get("7"), blocks["7"])
    assert not open_disk(tmp_path).contains("new")
    disk.flush()
    assert open_disk(tmp_path).contains("new")


WRITER = """
import os, sys, torch
from pathlib import Path
from memory.kv_cache.block import KVBlock
from memory.kv_cache.block_store import identity
from memory.storage.disk import Disk
disk = Disk(Path(sys.argv[1]))
disk.open("model")
k = torch.arange(2 * 3 * 40 * 8, dtype=torch.bfloat16).view(2, 3, 40, 8)
for number in range(4):
    name = identity("model", [1, 2], range(number, number + 40), "agent")
    disk.put(KVBlock(name, k + number, -k))
    if number == 2:
        disk.flush()
os._exit(0)  # without closing
"""


def test_another_process_finds_only_flushed_blocks(tmp_path: Path) -> None:
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", WRITER, str(tmp_path)]
        subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=PATIENCE)
    disk = open_disk(tmp_path)
    k = torch.arange(2 * 3 * 40 * 8, dtype=torch.bfloat16).view(2, 3, 40, 8)
    for number in range(4):
        stored = disk.get(identity("model", [1, 2], range(number, number + 40), "agent"))
        if number == 3:
            assert stored is None
        else:
            assert torch.equal(stored.k[:], k + number) and torch.equal(stored.v[:], -k)
    assert len(list(tmp_path.glob("*.safetensors"))) == 1


RESTLESS = """
import sys, torch
from pathlib import Path
from memory.kv_cache.block import KVBlock
from memory.storage.disk import Disk
disk = Disk(Path(sys.argv[1]))
disk.open("model")
for version in range(10**6):
    for number in range(8):
        k = torch.full((2, 2, 200, 32), float(version))
        disk.put(KVBlock(str(number), k, k, created=float(version)))
    disk.flush()
    print(version, flush=True)
"""


@pytest.fixture
def restless(tmp_path: Path) -> Iterator[subprocess.Popen]:
    """Process that replaces the same blocks in a loop."""
    command = [sys.executable, "-c", RESTLESS, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("wait", [0.0, 0.013, 0.037])
def test_a_killed_writer_leaves_one_complete_version(tmp_path: Path, restless: subprocess.Popen, wait: float) -> None:
    for _ in range(3):
        restless.stdout.readline()
    time.sleep(wait)
    restless.send_signal(signal.SIGKILL)
    versions_written = [int(line) for line in restless.communicate()[0].split()]
    disk = open_disk(tmp_path)
    blocks = [disk.get(str(number)) for number in range(8)]
    versions = {block.created for block in blocks}
    assert len(versions) == 1 and versions <= {*versions_written[-1:], max(versions_written, default=2) + 1.0, 2.0}
    assert all(bool((x[:] == block.created).all()) for block in blocks for x in (block.k, block.v))
    assert not list(tmp_path.glob(".*.partial")), "incomplete files must be deleted"
