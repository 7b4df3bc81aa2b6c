"""Disk storage that is damaged, full, or whose writer is killed: never wrong numbers."""

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
from memory.kv_cache.block import identity
from memory.kv_cache.mapped_rows import DamagedError
from tests.memory.storage.disks import block, filled, flip, only_file, opened, same
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("bits", [None, 4])
def test_a_flipped_bit_is_a_miss_and_a_report_never_wrong_numbers(
    tmp_path: Path, bits: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path, bits=bits)
    truth = opened(tmp_path, bits=bits)
    expected = {str(n): truth.get(str(n)) for n in range(40)}
    raw, path, rng = only_file(tmp_path).read_bytes(), only_file(tmp_path), random.Random(0)
    places = [*rng.sample(range(8 * len(raw)), 60), 0, 8 * len(raw) - 1, *rng.sample(range(8 * 3000), 15)]
    whole = 0
    for place in places:
        path.unlink()
        path.write_bytes(raw)
        flip(path, place)
        caplog.clear()
        disk = opened(tmp_path, bits=bits)
        lost = 0
        for name, one in expected.items():
            found = disk.get(name)
            try:
                assert found is None or all(torch.equal(a[:], b[:]) for a, b in ((found.k, one.k), (found.v, one.v)))
                lost += found is None
            except DamagedError as error:
                assert error.identity == name and "computed anew" in str(error)
                lost += disk.get(name) is None
        assert lost and disk.stats()["corrupt"] == (1 if lost == 40 else lost)
        assert "computed anew" in caplog.text and str(path) in caplog.text
        whole += lost == 40
        if place == places[-1]:
            disk.put(block("new"))
            disk.flush()
            assert opened(tmp_path, bits=bits).contains("new")
    assert 0 < whole < len(places)


def test_damage_gets_no_checksum_of_its_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocks = filled(tmp_path)
    path = only_file(tmp_path)
    flip(path, 8 * (path.stat().st_size - 100))  # in the last page
    disk = opened(tmp_path)
    disk.put(block("new"))
    with caplog.at_level(logging.WARNING):
        disk.flush()
    lost = disk.stats()["corrupt"]
    again = opened(tmp_path)
    assert 0 < lost < 40 and again.stats()["blocks"] == 41 - lost and disk.stats()["blocks"] == 41 - lost
    assert all(same(again.get(entry.key), blocks[entry.key]) for entry in again.entries()[:-1])
    assert caplog.text.count("is lost") == lost


def test_only_the_damaged_layer_is_lost_and_the_block_with_it(tmp_path: Path) -> None:
    """The last layer is damaged: the others are served until somebody has looked at it."""
    blocks, path = filled(tmp_path), only_file(tmp_path)
    flip(path, 8 * (path.stat().st_size - 1))  # values of the last layer
    disk = opened(tmp_path)
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
    assert same(disk.get("39"), blocks["39"]), "what was put since is another"
    assert disk.contains("37") and not disk.verify("37") and not disk.contains("37") and disk.verify("1")


@pytest.mark.parametrize("length", [0, 7, 500, -1])
def test_a_shortened_file_is_as_if_there_were_none(tmp_path: Path, length: int) -> None:
    filled(tmp_path)
    path = only_file(tmp_path)
    raw = path.read_bytes()[:length]
    path.unlink()
    path.write_bytes(raw)
    disk = opened(tmp_path)
    assert disk.stats()["corrupt"] == 1 and not disk.entries() and disk.get("1") is None


def test_a_full_disk_is_an_error_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks, disk = filled(tmp_path), opened(tmp_path)
    disk.put(block("new"))

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(CapacityError, match="No space left"):
        patch.setattr(atomic.os, "fsync", full)
        disk.flush()
    assert same(disk.get("new"), block("new")) and same(disk.get("7"), blocks["7"])
    assert not opened(tmp_path).contains("new")
    disk.flush()
    assert opened(tmp_path).contains("new")


WRITER = """
import os, sys, torch
from pathlib import Path
from memory.kv_cache.block import KVBlock, identity
from memory.storage.disk import Disk
disk = Disk(Path(sys.argv[1]))
disk.open("model")
k = torch.arange(2 * 3 * 40 * 8, dtype=torch.bfloat16).view(2, 3, 40, 8)
for number in range(4):
    name = identity("model", [1, 2], range(number, number + 40), "agent")
    disk.put(KVBlock(name, k + number, -k))
    if number == 2:
        disk.flush()
os._exit(0)  # without a good-bye
"""


def test_another_process_finds_only_flushed_blocks(tmp_path: Path) -> None:
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run(
            [sys.executable, "-c", WRITER, str(tmp_path)], cwd=ROOT, env=environment, check=True, timeout=PATIENCE
        )
    disk = opened(tmp_path)
    k = torch.arange(2 * 3 * 40 * 8, dtype=torch.bfloat16).view(2, 3, 40, 8)
    for number in range(4):
        found = disk.get(identity("model", [1, 2], range(number, number + 40), "agent"))
        if number == 3:
            assert found is None
        else:
            assert torch.equal(found.k[:], k + number) and torch.equal(found.v[:], -k)
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
    """A process that replaces the same blocks again and again."""
    command = [sys.executable, "-c", RESTLESS, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("wait", [0.0, 0.013, 0.037])
def test_a_writer_killed_at_any_moment_leaves_one_whole_version(
    tmp_path: Path, restless: subprocess.Popen, wait: float
) -> None:
    for _ in range(3):
        restless.stdout.readline()
    time.sleep(wait)
    restless.send_signal(signal.SIGKILL)
    said = [int(line) for line in restless.communicate()[0].split()]
    disk = opened(tmp_path)
    blocks = [disk.get(str(number)) for number in range(8)]
    versions = {one.created for one in blocks}
    assert len(versions) == 1 and versions <= {*said[-1:], max(said, default=2) + 1.0, 2.0}
    assert all(bool((one.k[:] == one.created).all() and (one.v[:] == one.created).all()) for one in blocks)
    assert not list(tmp_path.glob(".*.partial")), "what it left half written is gone"
