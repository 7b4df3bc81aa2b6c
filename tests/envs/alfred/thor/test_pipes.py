"""Replies of AI2-THOR, and the FIFO server with a peer that is slow, silent or gone."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from ai2thor.server import Event

from envs.alfred.thor.client import ThorClient, _reply
from envs.alfred.thor.errors import ThorAnswer, ThorGone, ThorTimeout
from envs.alfred.thor.options import ThorOptions
from envs.alfred.thor.servers import BoundedFifoServer
from tests.waiting import PATIENCE

SHORT = 1.0  # seconds; time-out of tests that can only end with it


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
        """Write the header of a record of 2 GiB, then its bytes one by one."""
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


class Simulator:
    """Simulator that answers every action with the same success flag."""

    def __init__(self, flag: Any) -> None:
        self._flag = flag

    def step(self, action: str) -> Any:
        metadata = {"lastActionSuccess": self._flag, "errorMessage": "", "actionReturn": None, "objects": []}
        return SimpleNamespace(metadata=metadata, third_party_camera_frames=[], frame=None)


@pytest.mark.parametrize("flag", ["false", "", None, 0, 1, [True]])
def test_a_success_flag_must_be_boolean(flag: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    thor = ThorClient(ThorOptions())
    monkeypatch.setattr(thor, "_controller", Simulator(flag))
    monkeypatch.setattr(thor, "close", lambda: None)
    with pytest.raises(ThorAnswer, match="lastActionSuccess=.*neither true nor false"):
        thor.step("Pass")


def test_frames_of_additional_cameras_have_three_channels() -> None:
    metadata = {
        "screenWidth": 4, "screenHeight": 3, "lastActionSuccess": True, "errorMessage": "", "actionReturn": None,
    }  # fmt: skip
    event = Event(metadata)
    event.add_third_party_camera_image(bytes(4 * 3 * 4))
    assert _reply(event).camera_frame.shape == (3, 4, 3) and np.ndim(event.third_party_camera_frames[-1]) == 3
