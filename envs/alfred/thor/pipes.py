"""The client's FIFO server with an end to every wait.

The one of ai2thor 5.0 blocks for ever in ``open`` when the process dies before it opens its pipe, and spins until its
time-out when it dies later. This one opens without blocking, watches the process while it waits, and gives all that
belongs to one message one clock.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress
from subprocess import TimeoutExpired
from typing import Any

from ai2thor.fifo_server import FifoServer

from envs.alfred.thor.errors import ThorAnswer, ThorGone, ThorTimeout
from envs.alfred.thor.processes import kill
from envs.clock import Clock

POLL = 0.2  # seconds between two looks at the process
CHUNK = 1 << 20  # bytes; a pipe holds fewer
A_DAY = 86_400.0  # seconds


class BoundedFifoServer(FifoServer):
    """Raises `ThorTimeout` and `ThorGone`. What is sent and how it is read is ai2thor's."""

    _begun = False  # whether anything was ever received

    def _recv_message(self, timeout: float | None) -> tuple[Any, Any]:
        self._set_clock(self.timeout if timeout is None else timeout)
        if self.server_pipe is None:
            self.server_pipe = os.fdopen(os.open(self.server_pipe_path, os.O_RDONLY | os.O_NONBLOCK), "rb", 0)
        try:
            return super()._recv_message(timeout)
        except KeyError as error:
            raise ThorAnswer(f"a record that cannot be read: KeyError {error}") from error

    def _read_with_timeout(self, server_pipe: Any, message_size: int, timeout: float | None) -> bytes:
        parts: list[bytes] = []
        while message_size > 0:
            self._await(server_pipe, read=True)
            part = os.read(server_pipe.fileno(), min(message_size, CHUNK))
            if not part and self._begun:
                raise ThorGone(f"the process has closed its pipe{self._ending()}", seconds=self._clock.elapsed)
            if not part:  # nobody has opened the other end yet
                self._pause()
            parts.append(part)
            message_size -= len(part)
        self._begun = self._begun or bool(parts)
        return b"".join(parts)

    def _send_message(self, message_type: int, body: bytes) -> None:
        self._set_clock(self.timeout)
        self._last_action_message = body
        if self.client_pipe is None:
            self.client_pipe = os.fdopen(self._open_client_pipe(), "wb", 0)
        rest = memoryview(self._create_header(message_type, body) + body + self.eom_header)
        while rest:
            self._await(self.client_pipe, read=False)
            try:
                rest = rest[os.write(self.client_pipe.fileno(), rest) :]
            except BlockingIOError:
                continue
            except BrokenPipeError as error:
                raise ThorGone(f"the process reads no more{self._ending()}", seconds=self._clock.elapsed) from error

    def stop(self) -> None:
        kill(self.unity_proc)  # before the client does, which would leave descendants
        super().stop()
        self.client_pipe = self.server_pipe = None

    def _await(self, pipe: Any, read: bool) -> None:
        """Until the pipe is ready. An end of file is ready, too."""
        lists = ([pipe], [], []) if read else ([], [pipe], [])
        while not any(select.select(*lists, min(POLL, self._left()))):
            self._alive()

    def _open_client_pipe(self) -> int:
        """Its number; it cannot be opened as long as nobody reads."""
        while True:
            with suppress(OSError):
                return os.open(self.client_pipe_path, os.O_WRONLY | os.O_NONBLOCK)
            self._pause()

    def _pause(self) -> None:
        """A moment, in which the other end may be opened."""
        self._alive()
        self._left()
        time.sleep(POLL / 10)

    def _set_clock(self, seconds: float | None) -> None:
        """For all that belongs to one message; None is a day."""
        self._clock = Clock(A_DAY if seconds is None else seconds)

    def _left(self) -> float:
        """Seconds left for this message. Raises `ThorTimeout` when there are none."""
        try:
            return self._clock.timeout()
        except TimeoutError as error:
            what = f"no whole answer within {self._clock.seconds:g} s"
            raise ThorTimeout(what, seconds=self._clock.elapsed) from error

    def _alive(self) -> None:
        process = self.unity_proc
        if process is not None and process.poll() is not None:
            raise ThorGone(f"the process has ended{self._ending()}", seconds=self._clock.elapsed)

    def _ending(self) -> str:
        """The exit status, where there is one; a process that closed its pipe is about to end."""
        process = self.unity_proc
        if process is None:
            return ""
        with suppress(TimeoutExpired):
            return f" with exit status {process.wait(timeout=1)}"
        return ""
