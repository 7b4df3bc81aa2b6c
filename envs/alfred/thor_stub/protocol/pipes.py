"""Channel of two named pipes. A message is a sequence of records, each with a type, a length and a body."""

from __future__ import annotations

import fcntl
import json
import os
import select
import struct
import time
from contextlib import suppress
from errno import ENXIO
from typing import Any

import msgpack

from envs.alfred.thor_stub.protocol.channel import GARBAGE, ClientGone
from envs.alfred.thor_stub.simulator import ActionReply

METADATA, ACTION, IMAGE, OTHER_IMAGE, PATCH, END = 1, 2, 4, 10, 11, 255
HEADER = struct.Struct("!BI")
OPEN_INTERVAL = 0.02  # seconds between two attempts to open a pipe
CHECK_INTERVAL = 0.5  # seconds between two checks of the client's process
OPEN_TIMEOUT = 60.0  # seconds to wait for the client to open its end
PIPE_BYTES = 1 << 20  # bytes; the capacity requested for a pipe
SETPIPE = getattr(fcntl, "F_SETPIPE_SZ", None)  # None except on Linux


class Pipes:
    """Channel over two pipes. The client has made both; ``outgoing`` and ``incoming`` are their paths."""

    def __init__(self, outgoing: str, incoming: str) -> None:
        self._paths = outgoing, incoming
        self._out = self._in = -1
        self._client = os.getppid()

    def open(self) -> None:
        """Open the outgoing pipe once the client has opened its end."""
        deadline = time.monotonic() + OPEN_TIMEOUT
        while self._out < 0:
            try:
                self._out = os.open(self._paths[0], os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno != ENXIO or time.monotonic() > deadline:
                    raise ClientGone(str(error)) from error
                self._check_client()
                time.sleep(OPEN_INTERVAL)
        os.set_blocking(self._out, True)
        if SETPIPE is not None:
            with suppress(OSError):
                fcntl.fcntl(self._out, SETPIPE, PIPE_BYTES)

    def send(self, reply: ActionReply, garbage: bool = False, half: bool = False) -> None:
        message = b"".join(_records(reply, garbage))
        rest = memoryview(message)[: len(message) // 2] if half else memoryview(message)
        try:
            while rest:
                rest = rest[os.write(self._out, rest) :]
        except OSError as error:
            raise ClientGone(str(error)) from error

    def receive(self) -> dict[str, Any]:
        """Return the next action. The first call opens the incoming pipe."""
        if self._in < 0:
            self._in = os.open(self._paths[1], os.O_RDONLY | os.O_NONBLOCK)
        action: dict[str, Any] = {}
        while True:
            kind, length = HEADER.unpack(self._read(HEADER.size))
            if kind == END:
                return action
            body = self._read(length)
            if kind == ACTION:
                action = json.loads(body)

    def idle(self) -> None:
        watch = select.poll()
        watch.register(self._out, 0)
        while not watch.poll(CHECK_INTERVAL * 1000):
            self._check_client()
        raise ClientGone("the client reads no more")

    def _read(self, size: int) -> bytes:
        parts = []
        while size:
            self._wait_for_bytes()
            with suppress(BlockingIOError):
                part = os.read(self._in, size)
                if not part:
                    raise ClientGone("the client has closed its pipe")
                parts.append(part)
                size -= len(part)
        return b"".join(parts)

    def _wait_for_bytes(self) -> None:
        """Wait for bytes to read; there are none before the client has opened its end."""
        watch = select.poll()
        watch.register(self._in, select.POLLIN)
        watch.register(self._out, 0)  # reports an error once the client has closed its end
        while not (ready := watch.poll(CHECK_INTERVAL * 1000)):
            self._check_client()
        if all(number == self._out for number, _ in ready):
            raise ClientGone("the client reads no more")

    def _check_client(self) -> None:
        """Raise ClientGone if the client has ended: this process then has another parent."""
        if os.getppid() != self._client:
            raise ClientGone("the client's process is gone")


def _records(reply: ActionReply, garbage: bool) -> list[bytes]:
    if garbage:
        return [*_record(METADATA, GARBAGE), HEADER.pack(END, 0)]
    if reply.patch is not None:
        return [*_record(PATCH, msgpack.packb(reply.patch)), HEADER.pack(END, 0)]
    parts = _record(METADATA, msgpack.packb(reply.metadata))
    if reply.image is not None:
        parts += _record(IMAGE, reply.image)
    for image in reply.camera_images:
        parts += _record(OTHER_IMAGE, image)
    return [*parts, HEADER.pack(END, 0)]


def _record(kind: int, body: bytes) -> list[bytes]:
    return [HEADER.pack(kind, len(body)), body]
