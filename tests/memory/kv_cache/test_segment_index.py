from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

from memory.kv_cache.block_lease import BlockPool
from memory.kv_cache.segment_index import SegmentIndex, segment_hash
from memory.storage.ram import Ram
from tests.memory.layouts import block

ROOT = Path(__file__).parents[3]


def test_the_hash_is_of_model_tokens_and_extra_key_alone() -> None:
    name = segment_hash("model", (1, 2, 3), "key")
    assert name == segment_hash("model", [1, 2, 3], "key")
    others = [
        ("other", (1, 2, 3), "key"),
        ("model", (1, 2), "key"),
        ("model", (3, 2, 1), "key"),
        ("model", (1, 2, 3), ""),
    ]
    assert len({name, *(segment_hash(*other) for other in others)}) == 5


def test_the_hash_is_the_same_in_every_process() -> None:
    code = "from memory.kv_cache.segment_index import segment_hash; print(segment_hash('model', range(40), 'kitchen'))"
    found = {
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, text=True, check=True,
            capture_output=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }  # fmt: skip
    assert found == {segment_hash("model", range(40), "kitchen")}


def test_several_names_see_parts_of_one_block_without_a_copy() -> None:
    pool = BlockPool(Ram())
    holder, index = pool.lease(), SegmentIndex(pool)
    stored = block(10, name="physical")
    holder.put(stored)
    for name, rows in {"all": (0, 10), "again": (0, 10), "part": (3, 7)}.items():
        index.insert(name, "physical", *rows)
    assert index.find("all", holder) is index.find("again", holder) is stored
    part = index.find("part", holder)
    assert torch.equal(part.k, stored.k[:, :, 3:7]) and torch.equal(part.v, stored.v[:, :, 3:7])
    assert part.k.untyped_storage().data_ptr() == stored.k.untyped_storage().data_ptr()
    assert part.identity != stored.identity
    assert pool.storage.stats()["blocks"] == 1
    assert index.names("physical") == ["all", "again", "part"]
    index.delete("all")
    index.delete("all")
    assert index.find("all", holder) is None
    assert index.find("again", holder) is stored


def test_an_entry_without_its_block_misses_and_is_dropped() -> None:
    pool = BlockPool(Ram())
    one, two = pool.lease(), pool.lease()
    index = SegmentIndex(pool)
    one.put(block(4, name="physical"))
    index.insert("name", "physical", 0, 4)
    assert "name" in index
    one.release()
    assert "name" not in index
    assert len(index) == 1
    assert index.find("name", two) is None
    assert len(index) == 0
    assert index.physical("name") is None


def test_finding_rows_takes_a_reference_to_their_block() -> None:
    pool = BlockPool(Ram())
    one, two = pool.lease(), pool.lease()
    index = SegmentIndex(pool)
    one.put(block(4, name="physical"))
    index.insert("name", "physical", 0, 2)
    assert pool.references["physical"] == 1
    index.find("name", two)
    one.release()
    assert index.find("name", two) is not None
    two.release()
    assert index.find("name", two) is None


def test_the_index_drops_entries_of_evicted_blocks() -> None:
    pool = BlockPool(Ram(budget_bytes=10 * block(4).nbytes))
    holder, index = pool.lease(), SegmentIndex(pool)
    for number in range(5000):
        holder.put(block(4, name=str(number)))
        index.insert(f"name {number}", str(number), 0, 4)
    assert len(index) < 1100
    assert index.find("name 4999", holder) is not None
