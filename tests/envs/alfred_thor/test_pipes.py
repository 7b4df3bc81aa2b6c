"""The FIFO server by itself, with a peer that is slow, silent or gone."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envs.alfred.thor.errors import ThorGone, ThorTimeout
from envs.alfred.thor.pipes import BoundedFifoServer

PATIENCE = 1.0  # seconds


@pytest.fixture
def server() -> Iterator[BoundedFifoServer]:
    made = BoundedFifoServer(width=300, height=300, timeout=PATIENCE)
    made.start()
    yield made
    made.stop()
    made.tmp_dir.cleanup()


def beside(act: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_what_drips_ends_with_the_whole_time(server: BoundedFifoServer) -> None:
    def drip() -> None:
        with Path(server.server_pipe_path).open("wb", buffering=0) as pipe:
            for _ in range(20):
                try:
                    pipe.write(b"\x01")
                except BrokenPipeError:
                    return
                time.sleep(0.2)

    thread, began = beside(drip), time.monotonic()
    with pytest.raises(ThorTimeout, match="within 1 s"):
        server.receive()
    assert time.monotonic() - began < PATIENCE + 2
    server.stop()
    thread.join()


def test_who_closes_in_the_middle_is_gone(server: BoundedFifoServer) -> None:
    def speak() -> None:
        with Path(server.server_pipe_path).open("wb", buffering=0) as pipe:
            pipe.write(b"\x01\x00\x00\x01\x00half")

    thread, began = beside(speak), time.monotonic()
    with pytest.raises(ThorGone, match="closed its pipe"):
        server.receive()
    assert time.monotonic() - began < PATIENCE
    thread.join()


def test_nobody_at_the_other_end(server: BoundedFifoServer) -> None:
    for attempt in (server.receive, lambda: server.send({"action": "Pass"})):
        began = time.monotonic()
        with pytest.raises(ThorTimeout):
            attempt()
        assert PATIENCE <= time.monotonic() - began < PATIENCE + 2


@pytest.mark.parametrize("reads", [True, False])
def test_an_action_larger_than_a_pipe(server: BoundedFifoServer, reads: bool) -> None:
    text, got = "x" * (1 << 20), bytearray()
    over = threading.Event()

    def listen() -> None:
        number = os.open(server.client_pipe_path, os.O_RDONLY)
        while reads and not got.endswith(server.eom_header):
            got.extend(os.read(number, 1 << 16))
        over.wait(5)
        os.close(number)

    thread = beside(listen)
    if reads:
        server.send({"action": text})
        thread_deadline = time.monotonic() + 5
        while not got.endswith(server.eom_header) and time.monotonic() < thread_deadline:
            time.sleep(0.01)
        assert text.encode() in got
    else:
        with pytest.raises(ThorTimeout):
            server.send({"action": text})
    over.set()
    thread.join()
