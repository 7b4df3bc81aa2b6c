"""Damaged block files: every changed bit is detected when its block is first read."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from keep_agent.errors import CorruptError
from memory.files import block_file as blockhead
from memory.files.block_file import open_blocks, write_blocks
from tests.memory.files.conftest import HEADER, TAIL, assert_holds, filled, rows


def check_all(path: Path) -> None:
    """Read everything in a file."""
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
    """Return the offset of a tensor's block in the file."""
    with path.open("rb") as stream:
        head, start = blockhead.Head.decode(stream.read(), path)
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


def test_exchanged_blocks_are_detected(path: Path) -> None:
    write_blocks(path, rows(), {})
    raw = bytearray(path.read_bytes())
    for name in rows():
        first, second, third = (place_of(path, name, block) for block in (1, 2, 3))
        raw[first:second], raw[second:third] = raw[second:third], raw[first:second]
    path.write_bytes(raw)
    for block in (1, 2):
        with pytest.raises(CorruptError, match=f"block {block} of 5"):
            open_blocks(path).verify(block, block + 1)


def test_equal_blocks_have_unequal_checksums(path: Path) -> None:
    write_blocks(path, {"k": torch.zeros(4, 8)}, {})
    head, _ = blockhead.Head.decode(path.read_bytes(), path)
    assert len(set(head.blocks)) == 4


def test_extra_tensors_have_their_own_checksum(path: Path) -> None:
    write_blocks(path, rows(), {}, TAIL)
    change(path, place_of(path, "tail", 0), 1)
    file = open_blocks(path)
    assert_holds(file, rows())
    assert file.extra("one") == 3.5
    with pytest.raises(CorruptError, match="'tail'"):
        file.extra("tail")


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


def flipped(raw: bytes, bit: int) -> bytes:
    copy = bytearray(raw)
    copy[bit // 8] ^= 1 << bit % 8
    return bytes(copy)


def flip_and_cut(path: Path, times: int) -> None:
    write_blocks(path, rows(blocks=8), HEADER | {"text": "word " * 300}, TAIL)
    raw = path.read_bytes()
    check_all(path)
    chance = random.Random(1)
    for _ in range(times):
        damaged(path, flipped(raw, chance.randrange(8 * len(raw))))
        damaged(path, raw[: chance.randrange(len(raw))])


def test_flipped_bits_and_cut_ends_are_found(path: Path) -> None:
    flip_and_cut(path, 100)
    raw = path.read_bytes()
    write_blocks(path, rows(), HEADER)
    whole = path.read_bytes()
    for bit in range(8 * (blockhead.LENGTH + len(blockhead.PREFIX) + blockhead.SEAL)):
        damaged(path, flipped(whole, bit))
    for damage in (b"", whole[:8], whole + b"\0", whole + whole, raw[:100] + whole[100:], b"\xff" * 200, bytes(200)):
        damaged(path, damage)


@pytest.mark.slow
def test_a_thousand_flipped_bits_and_a_thousand_cut_ends_are_found(path: Path) -> None:
    flip_and_cut(path, 1000)


@pytest.mark.slow
def test_every_bit_of_a_small_file_and_every_length(path: Path) -> None:
    write_blocks(path, {"k": filled((3, 8), torch.bfloat16)}, {"agent": "a"}, {"tail": torch.ones(2)})
    raw = path.read_bytes()
    for bit in range(8 * len(raw)):
        damaged(path, flipped(raw, bit))
    for size in range(len(raw)):
        damaged(path, raw[:size])
