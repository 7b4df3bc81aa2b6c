"""Block files: tensors and headers read back bit for bit, refused tensors, and damage that is detected."""

from __future__ import annotations

import random
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from keep_agent.errors import ConfigError, CorruptError, DataError
from memory.files import block_file as blockhead
from memory.files.block_file import open_blocks, write_blocks
from tests.memory.files.conftest import DTYPES, HEADER, TAIL, assert_holds, filled, rows, same
from tests.memory.storage.disks import flipped


def test_written_values_are_read_back(path: Path) -> None:
    write_blocks(path, rows(), HEADER, TAIL)
    file = open_blocks(path)
    assert_holds(file, rows())
    assert (file.header, file.blocks, file.nbytes) == (HEADER, 5, path.stat().st_size)
    assert file.extras == ("one", "tail")
    assert all(same(file.extra(name), tensor) for name, tensor in TAIL.items())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600  # private to the user
    assert [file.name for file in path.parent.iterdir()] == [path.name]


shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
several = st.lists(st.tuples(shapes, st.sampled_from(DTYPES)), max_size=4)


@given(st.integers(0, 5), several, several)
@settings(max_examples=50)
def test_any_shape_of_any_dtype(tmp_path: Path, blocks: int, inner: list, odd: list) -> None:
    tensors = {f"t{i}": filled((blocks, *shape), dtype, i) for i, (shape, dtype) in enumerate(inner)}
    extra = {f"x{i}": filled(shape, dtype, i) for i, (shape, dtype) in enumerate(odd)}
    write_blocks(tmp_path / "a", tensors, {}, extra)
    file = open_blocks(tmp_path / "a")
    assert_holds(file, tensors)
    assert file.blocks == (blocks if tensors else 0)
    assert all(same(file.extra(name), tensor) for name, tensor in extra.items())
    assert all(file.tensor(name).data_ptr() % tensor.itemsize == 0 for name, tensor in tensors.items())


def test_tensors_that_are_not_contiguous_or_need_gradients(path: Path) -> None:
    base = filled((6, 5, 4), torch.float32).nan_to_num()
    tensors = {"t": base.transpose(0, 1), "s": base[:5, ::2], "g": base[:5].clone().requires_grad_()}
    write_blocks(path, tensors, {})
    assert_holds(open_blocks(path), {name: tensor.detach() for name, tensor in tensors.items()})


def test_the_safetensors_library_reads_it(path: Path) -> None:
    write_blocks(path, rows(), HEADER, TAIL)
    loaded = load_file(path)
    assert loaded.keys() == {*rows(), *TAIL}
    assert all(same(loaded[name], tensor) for name, tensor in {**rows(), **TAIL}.items())
    with safe_open(path, "pt") as file:
        assert file.metadata()["format"] == blockhead.FORMAT


@pytest.mark.parametrize(("tensors", "header", "extra", "word"), [
    ({"a": torch.zeros(2), "b": torch.zeros(3)}, {}, {}, "first axis"),
    ({"a": torch.tensor(1.0)}, {}, {}, "first axis"),
    ({"a": torch.zeros(2, dtype=torch.int64)}, {}, {}, "int64"),
    ({}, {}, {"a": torch.zeros(2, dtype=torch.bool)}, "bool"),
    ({"a": torch.zeros(2)}, {}, {"a": torch.zeros(2)}, "twice"),
    ({"__metadata__": torch.zeros(2)}, {}, {}, "rename"),
    ({}, {"x": {1, 2}}, {}, "JSON"),
])  # fmt: skip
def test_unsupported_tensors_are_refused(path: Path, tensors: dict, header: dict, extra: dict, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        write_blocks(path, tensors, header, extra)
    assert not path.parent.exists()


def test_a_header_too_long_for_the_library_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockhead, "LONGEST", 1000)
    with pytest.raises(ConfigError, match="at most 1000"):
        write_blocks(path, {}, {"text": "x" * 1000})


def test_a_newer_file_is_not_reported_as_damaged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockhead, "SCHEMA", 2)
    write_blocks(path, rows(), {})
    monkeypatch.undo()
    with pytest.raises(DataError, match="schema 2, .* up to 1: update keep-agent") as caught:
        open_blocks(path)
    assert not isinstance(caught.value, CorruptError)


def test_missing_files_and_tensors_are_refused(path: Path) -> None:
    with pytest.raises(DataError, match="there is no"):
        open_blocks(path)
    write_blocks(path, rows(), {}, TAIL)
    file = open_blocks(path)
    for call in (lambda: file.tensor("tail"), lambda: file.extra("torch.uint8")):
        with pytest.raises(DataError, match="choose one of"):
            call()
    for run in ((0, 6), (-1, 2), (3, 2)):
        with pytest.raises(ConfigError, match="it has 5"):
            file.verify(*run)


def resident(path: Path) -> int:
    """Count the resident bytes of a file's mappings."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's list of mappings")
def test_only_verified_blocks_of_a_mapped_file_are_read(path: Path) -> None:
    size = 1 << 20
    write_blocks(path, {"k": torch.zeros(64, size, dtype=torch.uint8)}, {})
    file = open_blocks(path)
    tensor = file.tensor("k")
    assert tensor.shape == (64, size)
    assert resident(path) < 8 * size  # the kernel maps up to 2 MiB at once
    file.verify(10, 12)
    assert 2 * size <= resident(path) < 16 * size
    file.verify()
    assert resident(path) >= 64 * size


def test_a_mapped_file_outlives_its_name(path: Path) -> None:
    write_blocks(path, rows(), {"state": 1}, TAIL)
    file = open_blocks(path)
    write_blocks(path, rows(blocks=2, seed=50), {"state": 2})
    assert_holds(file, rows())
    assert same(file.extra("tail"), TAIL["tail"])
    assert_holds(open_blocks(path), rows(blocks=2, seed=50))
    late = open_blocks(path)
    path.unlink()
    assert_holds(late, rows(blocks=2, seed=50))
    tensor = late.tensor("torch.uint8")
    del late, file
    assert same(tensor, rows(blocks=2, seed=50)["torch.uint8"])


def test_writing_to_a_mapped_tensor_never_changes_the_file(path: Path) -> None:
    write_blocks(path, rows(), {})
    open_blocks(path).tensor("torch.float32").zero_()
    assert_holds(open_blocks(path), rows())


def check_all(path: Path) -> None:
    file = open_blocks(path)
    file.verify()
    for name in file.extras:
        file.extra(name)


def change(path: Path, place: int, value: int) -> None:
    """Change a byte in place, like a faulty disk."""
    with path.open("r+b") as stream:
        stream.seek(place)
        old = stream.read(1)[0]
        stream.seek(place)
        stream.write(bytes([old ^ value]))


def place_of(path: Path, name: str, block: int) -> int:
    with path.open("rb") as stream:
        head, start = blockhead.FileHeader.decode(stream.read(), path)
    span = head.spans[name]
    return start + span.begin + block * (span.end - span.begin) // len(head.blocks)


@pytest.mark.parametrize("name", rows())
def test_damage_is_detected_when_its_block_is_verified(path: Path, name: str) -> None:
    write_blocks(path, rows(), {}, TAIL)
    change(path, place_of(path, name, 2), 16)
    file = open_blocks(path)
    file.verify(0, 2)
    file.verify(4, 5)
    file.extra("tail")
    for first, last in ((2, 3), (1, 4), (0, None)):
        with pytest.raises(CorruptError, match=r"a\.safetensors is damaged in block 2 of 5: delete it"):
            file.verify(first, last)
    file.verify(3, 4)
    change(path, place_of(path, "tail", 0), 1)
    file = open_blocks(path)
    file.verify(0, 2)
    assert file.extra("one") == 3.5, "extra tensors have their own checksum"
    with pytest.raises(CorruptError, match="'tail'"):
        file.extra("tail")


def test_a_block_is_verified_once(path: Path) -> None:
    write_blocks(path, rows(), {}, TAIL)
    file = open_blocks(path)
    file.verify(1, 2)
    file.verify(3, 4)
    file.extra("tail")
    for block in (1, 3):
        change(path, place_of(path, "torch.uint8", block), 1)
    change(path, place_of(path, "tail", 0), 1)
    file.verify()
    file.extra("tail")
    with pytest.raises(CorruptError, match="block 1 of 5"):
        open_blocks(path).verify()


def test_two_threads_verify_two_runs(path: Path) -> None:
    write_blocks(path, rows(blocks=64), {})
    change(path, place_of(path, "torch.float16", 40), 1)
    file = open_blocks(path)
    with ThreadPoolExecutor(2) as pool:
        good, bad = pool.submit(file.verify, 0, 32), pool.submit(file.verify, 32, 64)
        good.result()
        with pytest.raises(CorruptError, match="block 40 of 64"):
            bad.result()


def damaged(path: Path, raw: bytes) -> None:
    """Check that damage at any place, padding included, is a CorruptError and not a newer version."""
    path.write_bytes(raw)
    with pytest.raises(CorruptError, match="delete it"):
        check_all(path)


@pytest.mark.parametrize("times", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_flipped_bits_and_cut_ends_are_found(path: Path, times: int) -> None:
    write_blocks(path, rows(blocks=8), HEADER | {"text": "word " * 300}, TAIL)
    raw, chance = path.read_bytes(), random.Random(1)
    check_all(path)
    for _ in range(times):
        damaged(path, flipped(raw, chance.randrange(8 * len(raw))))
        damaged(path, raw[: chance.randrange(len(raw))])
    raw = path.read_bytes()
    write_blocks(path, rows(), HEADER)
    whole = path.read_bytes()
    for bit in range(8 * (blockhead.LENGTH + len(blockhead.PREFIX) + blockhead.SEAL)):
        damaged(path, flipped(whole, bit))
    for damage in (b"", whole[:8], whole + b"\0", whole + whole, raw[:100] + whole[100:], b"\xff" * 200, bytes(200)):
        damaged(path, damage)


@pytest.mark.slow
def test_every_bit_of_a_small_file_and_every_length(path: Path) -> None:
    write_blocks(path, {"k": filled((3, 8), torch.bfloat16)}, {"agent": "a"}, {"tail": torch.ones(2)})
    raw = path.read_bytes()
    for bit in range(8 * len(raw)):
        damaged(path, flipped(raw, bit))
    for size in range(len(raw)):
        damaged(path, raw[:size])
