"""Block files: what was written is what is read, or an error; whatever happens to the file or to its writer."""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import os
import random
import stat
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from keep_agent.errors import CapacityError, ConfigError, CorruptError, DataError
from memory.disk import atomic, blockhead
from memory.disk.atomic import clean, replacing
from memory.disk.blockfile import BlockFile, open_blocks, write_blocks

DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)
HEADER = {"agent": "kitchen", "text": "größe \ud800 \"'\n", "ids": [1, 2, 3], "none": None}
FORK = multiprocessing.get_context("fork")  # a child need not load torch again


def filled(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Any bits, NaN among them."""
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).view(shape)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit, so that NaN equals NaN."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def rows(blocks: int = 5, seed: int = 0) -> dict[str, torch.Tensor]:
    """One tensor of every dtype, named after it."""
    return {str(dtype): filled((blocks, 3, 10), dtype, seed + i) for i, dtype in enumerate(DTYPES)}


TAIL = {"tail": filled((7, 3), torch.float32, 9), "one": torch.tensor(3.5)}


def assert_holds(found: BlockFile, tensors: Mapping[str, torch.Tensor]) -> None:
    found.verify()
    assert found.names == tuple(sorted(tensors))
    assert all(same(found.tensor(name), tensor) for name, tensor in tensors.items())


def check_all(path: Path) -> None:
    """Touch everything that a file holds."""
    found = open_blocks(path)
    found.verify()
    for name in found.extras:
        found.extra(name)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "folders" / "a.safetensors"


# What is written


def test_what_was_written_comes_back(path: Path) -> None:
    write_blocks(path, rows(), HEADER, TAIL)
    found = open_blocks(path)
    assert_holds(found, rows())
    assert (found.header, found.blocks, found.nbytes) == (HEADER, 5, path.stat().st_size)
    assert found.extras == ("one", "tail")
    assert all(same(found.extra(name), tensor) for name, tensor in TAIL.items())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600  # what an agent remembers is its user's
    assert [file.name for file in path.parent.iterdir()] == [path.name]


shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
several = st.lists(st.tuples(shapes, st.sampled_from(DTYPES)), max_size=4)


@given(st.integers(0, 5), several, several)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_shape_of_any_dtype(tmp_path: Path, blocks: int, inner: list, odd: list) -> None:
    tensors = {f"t{i}": filled((blocks, *shape), dtype, i) for i, (shape, dtype) in enumerate(inner)}
    extra = {f"x{i}": filled(shape, dtype, i) for i, (shape, dtype) in enumerate(odd)}
    write_blocks(tmp_path / "a", tensors, {}, extra)
    found = open_blocks(tmp_path / "a")
    assert_holds(found, tensors)
    assert found.blocks == (blocks if tensors else 0)
    assert all(same(found.extra(name), tensor) for name, tensor in extra.items())
    assert all(found.tensor(name).data_ptr() % tensor.itemsize == 0 for name, tensor in tensors.items())


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


@pytest.mark.parametrize(
    ("tensors", "header", "extra", "word"),
    [
        ({"a": torch.zeros(2), "b": torch.zeros(3)}, {}, {}, "first axis"),
        ({"a": torch.tensor(1.0)}, {}, {}, "first axis"),
        ({"a": torch.zeros(2, dtype=torch.int64)}, {}, {}, "int64"),
        ({}, {}, {"a": torch.zeros(2, dtype=torch.bool)}, "bool"),
        ({"a": torch.zeros(2)}, {}, {"a": torch.zeros(2)}, "twice"),
        ({"__metadata__": torch.zeros(2)}, {}, {}, "rename"),
        ({}, {"x": {1, 2}}, {}, "JSON"),
    ],
)
def test_what_cannot_be_written_is_refused(path: Path, tensors: dict, header: dict, extra: dict, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        write_blocks(path, tensors, header, extra)
    assert not path.parent.exists()


def test_a_header_that_the_library_could_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockhead, "LONGEST", 1000)
    with pytest.raises(ConfigError, match="at most 1000"):
        write_blocks(path, {}, {"text": "x" * 1000})


# What is mapped


def resident(path: Path) -> int:
    """Bytes of a file's mappings that this process has touched."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            ours = line.endswith(str(path))
        elif ours and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's list of mappings")
def test_a_file_is_mapped_and_only_touched_blocks_are_read(path: Path) -> None:
    size = 1 << 20
    write_blocks(path, {"k": torch.zeros(64, size, dtype=torch.uint8)}, {})
    found = open_blocks(path)
    tensor = found.tensor("k")
    assert tensor.shape == (64, size)
    assert resident(path) < 8 * size  # a touch maps what the kernel holds in one piece, up to 2 MiB
    found.verify(10, 12)
    assert 2 * size <= resident(path) < 16 * size
    found.verify()
    assert resident(path) >= 64 * size


def test_a_mapped_file_outlives_its_name(path: Path) -> None:
    write_blocks(path, rows(), {"state": 1}, TAIL)
    found = open_blocks(path)
    write_blocks(path, rows(blocks=2, seed=50), {"state": 2})
    assert_holds(found, rows())
    assert same(found.extra("tail"), TAIL["tail"])
    assert_holds(open_blocks(path), rows(blocks=2, seed=50))
    late = open_blocks(path)
    path.unlink()
    assert_holds(late, rows(blocks=2, seed=50))
    tensor = late.tensor("torch.uint8")
    del late, found
    assert same(tensor, rows(blocks=2, seed=50)["torch.uint8"])


def test_writing_into_a_mapped_tensor_never_reaches_the_file(path: Path) -> None:
    write_blocks(path, rows(), {})
    open_blocks(path).tensor("torch.float32").zero_()
    assert_holds(open_blocks(path), rows())


# What is damaged


def change(path: Path, place: int, value: int) -> None:
    """Exchange a byte where it lies, as a disk would."""
    with path.open("r+b") as stream:
        stream.seek(place)
        old = stream.read(1)[0]
        stream.seek(place)
        stream.write(bytes([old ^ value]))


def place_of(path: Path, name: str, block: int) -> int:
    """Where the first byte of a block of a tensor lies in the file."""
    with path.open("rb") as stream:
        head, start = blockhead.Head.decode(stream.read(), path)
    span = head.spans[name]
    return start + span.begin + block * (span.end - span.begin) // len(head.blocks)


@pytest.mark.parametrize("name", rows())
def test_damage_is_found_at_the_first_touch_of_its_block(path: Path, name: str) -> None:
    write_blocks(path, rows(), {}, TAIL)
    change(path, place_of(path, name, 2), 16)
    found = open_blocks(path)
    found.verify(0, 2)
    found.verify(4, 5)
    found.extra("tail")
    for first, last in ((2, 3), (1, 4), (0, None)):
        with pytest.raises(CorruptError, match=r"a\.safetensors is damaged in block 2 of 5: delete it"):
            found.verify(first, last)
    found.verify(3, 4)


def test_a_block_is_read_once(path: Path) -> None:
    write_blocks(path, rows(), {}, TAIL)
    found = open_blocks(path)
    found.verify(1, 2)
    found.verify(3, 4)
    found.extra("tail")
    for block in (1, 3):
        change(path, place_of(path, "torch.uint8", block), 1)
    change(path, place_of(path, "tail", 0), 1)
    found.verify()
    found.extra("tail")
    with pytest.raises(CorruptError, match="block 1 of 5"):
        open_blocks(path).verify()


def test_blocks_cannot_change_places(path: Path) -> None:
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
    found = open_blocks(path)
    assert_holds(found, rows())
    assert found.extra("one") == 3.5
    with pytest.raises(CorruptError, match="'tail'"):
        found.extra("tail")


def test_two_threads_verify_two_runs(path: Path) -> None:
    write_blocks(path, rows(blocks=64), {})
    change(path, place_of(path, "torch.float16", 40), 1)
    found = open_blocks(path)
    with ThreadPoolExecutor(2) as pool:
        good, bad = pool.submit(found.verify, 0, 32), pool.submit(found.verify, 32, 64)
        good.result()
        with pytest.raises(CorruptError, match="block 40 of 64"):
            bad.result()


def damaged(path: Path, raw: bytes) -> None:
    """Every damage is a CorruptError: no place is harmless, padding neither, and none makes a file look newer."""
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
    for other in (b"", whole[:8], whole + b"\0", whole + whole, raw[:100] + whole[100:], b"\xff" * 200, bytes(200)):
        damaged(path, other)


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


def test_a_newer_file_is_not_called_damaged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockhead, "SCHEMA", 2)
    write_blocks(path, rows(), {})
    monkeypatch.undo()
    with pytest.raises(DataError, match="schema 2, .* up to 1: update keep-agent") as caught:
        open_blocks(path)
    assert not isinstance(caught.value, CorruptError)


def test_what_is_not_there(path: Path) -> None:
    with pytest.raises(DataError, match="there is no"):
        open_blocks(path)
    write_blocks(path, rows(), {}, TAIL)
    found = open_blocks(path)
    for call in (lambda: found.tensor("tail"), lambda: found.extra("torch.uint8")):
        with pytest.raises(DataError, match="choose one of"):
            call()
    for run in ((0, 6), (-1, 2), (3, 2)):
        with pytest.raises(ConfigError, match="it has 5"):
            found.verify(*run)


# What survives its writer


def content(state: int) -> dict[str, torch.Tensor]:
    """More blocks with every state, from 1 to 24, of 64 KiB each."""
    blocks = 1 + state % 24
    shapes = {"k": ((blocks, 4, 1 << 12), torch.bfloat16), "v": ((blocks, 1 << 15), torch.uint8)}
    return {name: filled(shape, dtype, state) for name, (shape, dtype) in shapes.items()}


def state_of(path: Path) -> int:
    """The state that a file holds; fails unless every bit of it is that state's."""
    found = open_blocks(path)
    state = found.header["state"]
    assert_holds(found, content(state))
    return state


def write_state(path: Path, state: int) -> None:
    write_blocks(path, content(state), {"state": state})


def test_the_bytes_are_on_the_disk_before_the_name_and_the_name_before_the_return(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_state(path, 1)
    calls: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def noted_fsync(number: int) -> None:
        calls.append("folder" if stat.S_ISDIR(os.fstat(number).st_mode) else f"file {os.fstat(number).st_size}")
        fsync(number)

    def noted_replace(source: Path, target: Path) -> Path:
        calls.append("name")
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    write_state(path, 2)
    assert calls == [f"file {path.stat().st_size}", "name", "folder"]


def fails(error: BaseException) -> Callable[..., None]:
    def call(*_: object) -> None:
        raise error

    return call


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_an_error_leaves_the_old_file_and_nothing_else(path: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_state(path, 1)
    owner = os if step == "fsync" else Path
    for error, seen in (
        (OSError(errno.ENOSPC, "No space left"), CapacityError),
        (OSError(errno.EIO, "broken"), OSError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, step, fails(error))
            with pytest.raises(seen):
                write_state(path, 2)
        assert state_of(path) == 1
        assert [file.name for file in path.parent.iterdir()] == [path.name]


def die_at(path: Path, step: str, calls: int) -> None:
    """Write a state and end without a farewell at a call of ``step``."""
    counter = itertools.count(1)
    owner = os if step == "fsync" else Path
    real = getattr(owner, step)

    def call(*arguments: object) -> object:
        if next(counter) == calls:
            os._exit(9)
        return real(*arguments)

    setattr(owner, step, call)
    write_state(path, 2)


@pytest.mark.parametrize(("step", "calls", "state"), [("fsync", 1, 1), ("replace", 1, 1), ("fsync", 2, 2)])
def test_a_writer_that_dies_leaves_the_old_file_or_the_new_one(path: Path, step: str, calls: int, state: int) -> None:
    write_state(path, 1)
    child = FORK.Process(target=die_at, args=(path, step, calls))
    child.start()
    child.join(60)
    assert child.exitcode == 9
    assert state_of(path) == state
    assert len(clean(path.parent)) == (state == 1)
    assert clean(path.parent) == []
    assert state_of(path) == state
    write_state(path, 3)
    assert state_of(path) == 3


def test_what_is_being_written_is_no_leftover(path: Path) -> None:
    with replacing(path) as stream:
        stream.write(b"half")
        stream.flush()
        assert len(list(path.parent.iterdir())) == 1
        assert clean(path.parent) == []
    assert path.read_bytes() == b"half"
    (path.parent / ".other.tmp").touch()
    (path.parent / "a.partial").touch()
    assert clean(path.parent) == []
    assert clean(path.parent / "missing") == []


def test_cleaning_between_creating_and_locking_costs_the_writer_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, removed = atomic.fcntl.flock, []

    def late(stream: object, how: int) -> None:
        if not removed:
            removed.append(None)
            removed.extend(clean(path.parent))
        lock(stream, how)

    monkeypatch.setattr(atomic.fcntl, "flock", late)
    write_state(path, 4)
    assert len(removed) == 2
    assert state_of(path) == 4
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_writers_of_one_path_never_mix(path: Path) -> None:
    write_state(path, 0)
    done = threading.Event()

    def read() -> int:
        reads = 0
        while not done.is_set():
            state_of(path)
            clean(path.parent)
            reads += 1
        return reads

    with ThreadPoolExecutor(4) as pool:
        reader = pool.submit(read)
        writers = [pool.submit(lambda s: [write_state(path, s + 3 * i) for i in range(10)], s) for s in range(3)]
        try:
            for writer in writers:
                writer.result()
        finally:
            done.set()
        assert reader.result() > 0
    assert state_of(path) in range(30)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def write_on(path: Path, state: int, news: Connection) -> None:
    """State after state until killed; each is announced before it is begun and after it is done."""
    for number in itertools.count(state):
        news.send(("begun", number))
        write_state(path, number)
        news.send(("done", number))


class Writer:
    """A path, the process that writes there, and what that had announced when it was killed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.begun = self.done = -1

    def start(self) -> None:
        self.news, theirs = FORK.Pipe(duplex=False)
        self.process = FORK.Process(target=write_on, args=(self.path, self.begun + 1, theirs))
        self.process.start()
        theirs.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        while True:
            try:
                word, number = self.news.recv()
            except EOFError:
                break
            setattr(self, word, number)
        self.news.close()

    def check(self) -> None:
        if self.done >= 0 or self.path.exists():
            state = state_of(self.path)
            assert self.done <= state <= self.begun
            self.done = state  # what was once seen may not go back either


@pytest.mark.slow
def test_killed_two_hundred_times_under_load(tmp_path: Path) -> None:
    """Two writers in one folder, killed at the same random moments; SIGKILL leaves no time for a farewell."""
    writers = [Writer(tmp_path / f"{name}.safetensors") for name in "ab"]
    chance, interrupted, leftovers = random.Random(2), 0, 0
    for _ in range(200):
        for writer in writers:
            writer.start()
        time.sleep(chance.uniform(0, 0.1))
        for writer in writers:
            writer.kill()
        interrupted += sum(writer.begun > writer.done for writer in writers)
        for writer in writers:
            writer.check()
        leftovers += len(clean(tmp_path))
        assert {file.name for file in tmp_path.iterdir()} <= {writer.path.name for writer in writers}
    assert interrupted > 100
    assert leftovers > 50  # else the kills would have missed the writing
