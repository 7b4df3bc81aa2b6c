"""FIFO server alone, with a peer that is slow, silent or gone."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envs.alfred.thor.errors import ThorGone, ThorTimeout
from envs.alfred.thor.pipes import BoundedFifoServer
from tests.waiting import PATIENCE

SHORT = 1.0  # seconds, in tests that can only end with the time-out


@pytest.fixture
def server() -> Iterator[BoundedFifoServer]:
    fifo = BoundedFifoServer(width=300, height=300, timeout=PATIENCE)
    fifo.start()
    yield fifo
    fifo.stop()
    fifo.tmp_dir.cleanup()


@pytest.fixture
def hasty(server: BoundedFifoServer) -> BoundedFifoServer:
    server.timeout = SHORT
    return server


def beside(act: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_a_slow_message_times_out_as_a_whole(hasty: BoundedFifoServer) -> None:
    started, stopped = threading.Event(), threading.Event()
    descriptor = os.open(hasty.server_pipe_path, os.O_RDONLY | os.O_NONBLOCK)  # lets the writer open its end

    def drip() -> None:
        """Return the first bytes of a record that says it is long."""
        with Path(hasty.server_pipe_path).open("wb", buffering=0) as pipe:
            pipe.write(b"\x01\x7f\xff\xff\xff")
            started.set()
            while not stopped.wait(0.05):
                pipe.write(b"\x01")

    thread = beside(drip)
    assert started.wait(PATIENCE)
    with pytest.raises(ThorTimeout, match="within 1 s"):
        hasty.receive()
    stopped.set()
    thread.join()
    os.close(descriptor)


def test_a_pipe_closed_within_a_message_is_an_error(server: BoundedFifoServer) -> None:
    def speak() -> None:
        with Path(server.server_pipe_path).open("wb", buffering=0) as pipe:
            pipe.write(b"\x01\x00\x00\x01\x00half")

    thread = beside(speak)
    with pytest.raises(ThorGone, match="closed its pipe"):
        server.receive()
    thread.join()


def test_no_process_at_the_other_end(hasty: BoundedFifoServer) -> None:
    for attempt in (hasty.receive, lambda: hasty.send({"action": "Pass"})):
        with pytest.raises(ThorTimeout) as caught:
            attempt()
        assert caught.value.seconds >= SHORT


LARGE = "x" * (1 << 20)  # characters, more than a pipe holds


def test_an_action_larger_than_a_pipe(server: BoundedFifoServer) -> None:
    got = bytearray()

    def listen() -> None:
        with Path(server.client_pipe_path).open("rb", buffering=0) as pipe:
            while not got.endswith(server.eom_header):
                got.extend(pipe.read(1 << 16))

    thread = beside(listen)
    server.send({"action": LARGE})
    thread.join()
    assert LARGE.encode() in got


def test_an_action_that_no_process_reads(hasty: BoundedFifoServer) -> None:
    number = os.open(hasty.client_pipe_path, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(ThorTimeout):
        hasty.send({"action": LARGE})
    os.close(number)
