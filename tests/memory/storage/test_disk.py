"""Disk storage: flushed blocks are found after a restart and mapped, kept apart by model and agent, never wrong."""

from __future__ import annotations

import logging
import pickle
import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keep_agent.errors import CapacityError, ConfigError, DataError
from memory.files import block_file as blockhead
from memory.kv_cache.packed_rows import DamagedError, PackedRows
from memory.storage.block_pages import PAGE
from memory.storage.disk import Disk
from memory.storage.quantized import Quantized
from tests.memory.storage.disks import block, filled, flip, flipped, full_disk, only_file, open_disk, rewrite, same

DTYPES = (torch.float32, torch.bfloat16, torch.float64)
CALLS = ("put", "put", "get", "delete", "flush", "reopen", "crash")


@given(
    st.lists(st.tuples(st.sampled_from(CALLS), st.sampled_from("abcd"), st.sampled_from([0, 1, 9, 300])), max_size=25),
    st.sampled_from(DTYPES),
)
@settings(max_examples=60)
def test_a_disk_equals_a_dictionary_that_is_copied_by_flush(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[str, str, int]], dtype: torch.dtype
) -> None:
    folder = tmp_path_factory.mktemp("kv")
    disk, live, flushed = open_disk(folder), {}, {}
    for version, (call, name, tokens) in enumerate(calls):
        if call == "put":
            live[name] = block(name, tokens, version, dtype)
            disk.put(live[name])
        elif call == "get":
            stored = disk.get(name)
            assert same(stored, live[name]) if name in live else stored is None
        elif call == "delete":
            disk.delete(name)
            live.pop(name, None)
        elif call != "crash":
            disk.flush()
            flushed = dict(live)
        if call in ("reopen", "crash"):
            disk, live = open_disk(folder), dict(flushed)
        entries = {(entry.key, entry.owner, entry.timestamp) for entry in disk.entries()}
        assert entries == {(name, first.namespace, first.created) for name, first in live.items()}
        assert disk.stats()["bytes"] == sum(first.nbytes for first in live.values())
        assert [disk.contains(name) for name in "abcd"] == [name in live for name in "abcd"]
    assert all(same(disk.get(name), first) for name, first in live.items())
    disk.flush()
    again = open_disk(folder)
    assert all(same(again.get(name), first) for name, first in live.items()) and again.stats()["corrupt"] == 0


def test_layers_budget_and_order_of_use(tmp_path: Path) -> None:
    size = block("a").nbytes
    disk = open_disk(tmp_path, budget_bytes=3 * size)
    for name in "abc":
        disk.put(block(name))
    assert disk.get("a") is not None
    disk.put(block("big", 20))
    assert disk.stats()["rejected"] == 1
    disk.flush()
    again = open_disk(tmp_path, budget_bytes=3 * size)
    again.put(block("d"))
    assert [entry.key for entry in again.entries()] == ["c", "a", "d"], "b was least recently used before the restart"
    assert same(again.get("c"), block("c")) and again.get("b") is None
    counts = {"hits": 1, "misses": 1, "evicted": 1, "rejected": 0, "corrupt": 0}
    file_bytes = only_file(tmp_path).stat().st_size
    assert again.stats() == {"blocks": 3, "bytes": 3 * size, "waiting": size, "file_bytes": file_bytes, **counts}
    smaller = open_disk(tmp_path, budget_bytes=size)
    assert [entry.key for entry in smaller.entries()] == ["a"]


def test_deleted_and_overwritten_blocks_leave_the_file(tmp_path: Path) -> None:
    filled(tmp_path)
    before = only_file(tmp_path).stat().st_size
    leftover = tmp_path / f".{only_file(tmp_path).name}.x1y2z3_4.partial"
    leftover.write_bytes(b"half")
    disk = open_disk(tmp_path)
    assert not leftover.exists(), "files of killed writers are deleted"
    for number in range(36):
        disk.delete(str(number))
    disk.put(block("39", 60))
    disk.flush()
    assert only_file(tmp_path).stat().st_size < before / 4
    mapped = disk.get("39")
    for number in range(36, 40):
        disk.delete(str(number))
    disk.flush()
    assert not list(tmp_path.glob("*.safetensors")), "a file without blocks is deleted"
    assert same(mapped, block("39", 60)), "served blocks stay mapped"


def test_a_block_is_mapped_and_verified_when_indexed(tmp_path: Path) -> None:
    blocks = filled(tmp_path)
    disk = open_disk(tmp_path)
    file = disk._pages._file
    pages = file.blocks // 3
    first, second = disk.get("1"), disk.get("2")
    assert not file._verified and pages > 3, "nothing may be read before it is indexed"
    assert (first.k.shape, first.k.dtype, first.k.device) == (blocks["1"].k.shape, torch.float32, torch.device("cpu"))
    assert (first.tokens, first.nbytes) == (blocks["1"].tokens, blocks["1"].nbytes)
    assert torch.equal(first.k[1, :, 3:9], blocks["1"].k[1, :, 3:9]) and file._verified == {pages}
    storages = {x.untyped_storage().data_ptr() for x in (first.k[1], second.k[1])}
    assert len(storages) == 1 and file._verified == {pages}, "views of the file"
    assert same(first, blocks["1"]) and file._verified == {0, pages, 2 * pages}
    assert disk.contains("39") and file._verified == {0, pages, 2 * pages}, "still nothing is read"
    assert disk.verify("39") and file._verified == {p + layer * pages for p in (0, pages - 1) for layer in range(3)}
    assert disk.get("7").v[1, :, 2:30].transpose(0, 1).is_contiguous(), "token by token, in one run of the file"


def test_nested_parts_verify_their_own_rows_only(tmp_path: Path) -> None:
    for bits in (None, 8):
        disk = open_disk(tmp_path / str(bits), bits=bits)
        disk.put(block("a", 1000))
        expected = disk.get("a").k[:]
        disk.flush()
        stored, file = disk.get("a"), disk._pages._file
        part = stored.part(100, 900).part(200, 700)
        assert part.k.shape == (3, 2, 500, 8) and part.identity == "a[100:900][200:700]" and not file._verified
        assert torch.equal(part.k[0, :, 10:20], expected[0, :, 310:320]) and file._verified == {1}
        assert torch.equal(part.k.index_select(0, torch.tensor([1])), expected[1:2, :, 300:800])
        assert file._verified == {1, 5, 6, 7} and not part.is_loaded, "page 2 of layers 0 and 2, 1 and 3 were not read"
        assert torch.equal(part.k[:], expected[:, :, 300:800]) and part.is_loaded and not stored.is_loaded
        assert part.k[:, :, 4:4].shape == (3, 2, 0, 8)


def test_settled_blocks_do_not_need_the_file(tmp_path: Path) -> None:
    for bits in (None, 4):
        disk = open_disk(tmp_path / str(bits), bits=bits)
        disk.put(block("a", 20))
        put = disk.get("a")
        disk.flush()
        mapped = disk.get("a")
        copy = mapped.in_memory()
        assert mapped.is_loaded and copy.is_loaded and copy.in_memory() is copy and copy.nbytes == put.nbytes
        assert torch.equal(copy.k[:], put.k[:]) and torch.equal(copy.v[:], put.v[:])
        raw = [x.pieces[0].codes if bits else x for x in (mapped.k.whole(), copy.k, copy.v)]
        assert len({x.untyped_storage().data_ptr() for x in raw}) == 3
        assert bits or copy.k.transpose(1, 2).is_contiguous(), "token by token within a layer"


@pytest.mark.parametrize("packed", [False, True])
def test_unsupported_indexes_of_stored_rows_are_refused(tmp_path: Path, packed: bool) -> None:
    filled(tmp_path)
    rows = Quantized().stored_form(block("7", 38)).k if packed else open_disk(tmp_path).get("7").k
    mapped_only = [] if packed else [..., (0, ..., slice(0, 2)), None]
    for index in [(0, 1), (0, slice(None), slice(0, 4, 2)), (0, slice(None), 3), *mapped_only]:
        with pytest.raises(ConfigError, match=r"use \[layers\]"):
            rows[index]
    with pytest.raises(ConfigError, match="along dim 1"):
        rows.narrow(1, 0, 1)
    with pytest.raises(ConfigError, match="along dim 2"):
        rows.index_select(2, torch.tensor([0]))


def test_a_full_buffer_is_flushed(tmp_path: Path) -> None:
    size = block("a").nbytes
    disk = open_disk(tmp_path, buffer_bytes=2 * size)
    for name in "abcd":
        disk.put(block(name))
    assert disk.stats()["waiting"] == size
    stored = open_disk(tmp_path)
    assert [stored.contains(name) for name in "abcd"] == [True, True, True, False]


def test_other_models_formats_and_agents_have_files_of_their_own(tmp_path: Path) -> None:
    owners = [("m", {}), ("n", {}), ("m", {"bits": 8}), ("m", {"bits": 4}), ("m", {"bits": 4, "group": 32})]
    owners += [("m", {"agent": "other"})]
    for version, (model, knobs) in enumerate(owners):
        disk = open_disk(tmp_path, model, **knobs)
        assert disk.get("a") is None, "no other owner's block may be served"
        disk.put(block("a", version=version))
        disk.flush()
    assert len(list(tmp_path.glob("*.safetensors"))) == len(owners)
    for version, (model, knobs) in enumerate(owners):
        assert open_disk(tmp_path, model, **knobs).get("a").created == version


def test_a_newer_versions_file_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(blockhead, "SCHEMA", blockhead.SCHEMA + 1)
        filled(tmp_path)
    raw = only_file(tmp_path).read_bytes()
    with pytest.raises(DataError, match="update keep-agent"):
        open_disk(tmp_path)
    assert only_file(tmp_path).read_bytes() == raw


def test_blocks_that_do_not_fit_the_file_are_refused(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    with pytest.raises(ConfigError, match=r"open\(model_key\)"):
        disk.put(block("a"))
    disk.open("m")
    disk.open("m")
    disk.put(block("a"))
    with pytest.raises(ConfigError, match="'m': make another for 'n'"):
        disk.open("n")
    with pytest.raises(ConfigError, match="does not fit into a file of"):
        disk.put(block("b", dtype=torch.bfloat16))
    packing = Quantized(bits=8)
    with pytest.raises(ConfigError, match="cannot be stored in an unquantized file"):
        disk.put(packing.stored_form(block("c")))
    assert str(Disk().folder).endswith("kv")


@pytest.mark.parametrize(("bits", "bound"), [(8, 0.004), (4, 0.07)])
def test_packed_blocks_are_mapped_packed(tmp_path: Path, bits: int, bound: float) -> None:
    disk = open_disk(tmp_path, bits=bits)
    packed = Quantized(bits=bits).stored_form(block("ready", 300))
    for first in (block("a", 20), block("b", 256), packed):
        disk.put(first)
    assert disk.get("ready") is packed, "packed blocks are not packed again"
    before = {name: disk.get(name) for name in ("a", "b", "ready")}
    disk.flush()
    again = open_disk(tmp_path, bits=bits)
    assert not again.capabilities.exact and again.capabilities.persists
    for name, first in before.items():
        stored = again.get(name)
        assert isinstance(stored.k, PackedRows) and stored.nbytes == first.nbytes
        assert torch.equal(stored.k[:], first.k[:]) and torch.equal(stored.v[1, :, 3:9], first.v[1, :, 3:9])
    assert float((again.get("b").k[:] - block("b", 256).k).abs().max() / block("b", 256).k.abs().max()) < bound
    tokens = PAGE * -(-(20 + 256 + 300) // PAGE)
    assert again.stats()["file_bytes"] < tokens * before["a"].nbytes / 20 + 2000
    by_channel = Quantized(bits=bits, group=8, keys="channel").stored_form(block("c", 20))
    again.put(by_channel)
    again.flush()
    assert [len(first.k.pieces) for first in (by_channel, again.get("c"))] == [2, 1], "a disk packs by token"


def test_a_damaged_error_can_be_pickled() -> None:
    copy = pickle.loads(pickle.dumps(DamagedError("abc", "block abc is lost")))
    assert (copy.identity, str(copy)) == ("abc", "block abc is lost")


@pytest.mark.parametrize("bits", [None, 4])
def test_a_flipped_bit_is_a_reported_miss(tmp_path: Path, bits: int | None, caplog: pytest.LogCaptureFixture) -> None:
    filled(tmp_path, bits=bits)
    truth = open_disk(tmp_path, bits=bits)
    expected = {str(n): truth.get(str(n)) for n in range(40)}
    raw, path, rng = only_file(tmp_path).read_bytes(), only_file(tmp_path), random.Random(0)
    places = [*rng.sample(range(8 * len(raw)), 60), 0, 8 * len(raw) - 1, *rng.sample(range(8 * 3000), 15)]
    whole = 0
    for place in places:
        rewrite(path, flipped(raw, place))
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


def test_a_full_disk_is_an_error_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks, disk = filled(tmp_path), open_disk(tmp_path)
    disk.put(block("new"))
    with full_disk(monkeypatch), pytest.raises(CapacityError, match="No space left"):
        disk.flush()
    assert same(disk.get("new"), block("new")) and same(disk.get("7"), blocks["7"])
    assert not open_disk(tmp_path).contains("new")
    disk.flush()
    assert open_disk(tmp_path).contains("new")
