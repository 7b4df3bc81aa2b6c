"""Servers with time limits for ai2thor's client, over two pipes or HTTP. They correct ai2thor 5.0's own servers.

The pipe server of ai2thor blocks forever in ``open`` if the process dies before it opens its pipe, and polls until its
time-out if the process dies later. ai2thor's HTTP server (for machines without named pipes) never frees its
thread and socket, replaces an ended process by a new one in the initial room, and does not report unreadable replies.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress
from pathlib import Path
from queue import Full
from signal import SIGKILL
from subprocess import Popen, TimeoutExpired
from typing import Any

from ai2thor.exceptions import UnityCrashException
from ai2thor.fifo_server import FifoServer
from ai2thor.server import Event
from ai2thor.wsgi_server import WsgiServer
from werkzeug.exceptions import HTTPException

from envs.alfred.thor.errors import ThorAnswer, ThorGone, ThorTimeout
from envs.clock import Clock

POLL_INTERVAL = 0.2  # seconds between two checks of the process
CHUNK = 1 << 20  # maximum bytes per read
DAY = 86_400.0  # seconds
JOIN_TIMEOUT = 5.0  # seconds to wait for the server's thread to end


def kill(process: Popen | None) -> None:
    """Kill a process and its descendants, such as AI2-THOR started by a script (xvfb-run)."""
    if process is None or process.poll() is not None:
        return
    children = descendants(process.pid)
    process.kill()
    for number in children:
        with suppress(OSError):
            os.kill(number, SIGKILL)


def descendants(process: int) -> list[int]:
    """Return the process ids of all descendants; empty on systems other than Linux."""
    try:
        lists = [file.read_text() for file in Path(f"/proc/{process}/task").glob("*/children")]
    except OSError:
        return []
    children = [int(number) for text in lists for number in text.split()]
    return [*children, *(grandchild for child in children for grandchild in descendants(child))]


class BoundedFifoServer(FifoServer):
    """Server of ai2thor's pipe protocol, with time limits. Raises `ThorTimeout`, `ThorGone` and `ThorAnswer`."""

    _has_received = False  # whether the process has sent any bytes

    def _recv_message(self, timeout: float | None) -> tuple[Any, Any]:
        self._set_clock(self.timeout if timeout is None else timeout)
        if self.server_pipe is None:
            self.server_pipe = os.fdopen(os.open(self.server_pipe_path, os.O_RDONLY | os.O_NONBLOCK), "rb", 0)
        try:
            return super()._recv_message(timeout)
        except KeyError as error:
            raise ThorAnswer(f"an unreadable record: KeyError {error}") from error

    def _read_with_timeout(self, server_pipe: Any, message_size: int, timeout: float | None) -> bytes:
        parts: list[bytes] = []
        while message_size > 0:
            self._wait_until_ready(server_pipe, read=True)
            part = os.read(server_pipe.fileno(), min(message_size, CHUNK))
            if not part and self._has_received:
                raise ThorGone(f"the process has closed its pipe{self._exit_status()}", seconds=self._clock.elapsed)
            if not part:  # the process has not yet opened its end
                self._pause()
            parts.append(part)
            message_size -= len(part)
        self._has_received = self._has_received or bool(parts)
        return b"".join(parts)

    def _send_message(self, message_type: int, body: bytes) -> None:
        self._set_clock(self.timeout)
        self._last_action_message = body
        if self.client_pipe is None:
            self.client_pipe = os.fdopen(self._open_client_pipe(), "wb", 0)
        rest = memoryview(self._create_header(message_type, body) + body + self.eom_header)
        while rest:
            self._wait_until_ready(self.client_pipe, read=False)
            try:
                rest = rest[os.write(self.client_pipe.fileno(), rest) :]
            except BlockingIOError:
                continue
            except BrokenPipeError as error:
                raise ThorGone(
                    f"the process has stopped reading{self._exit_status()}", seconds=self._clock.elapsed
                ) from error

    def stop(self) -> None:
        kill(self.unity_proc)  # ai2thor's stop leaves descendants of the process running
        super().stop()
        self.client_pipe = self.server_pipe = None

    def _wait_until_ready(self, pipe: Any, read: bool) -> None:
        """Wait until the pipe can be read or written without blocking; an end of file counts as readable."""
        lists = ([pipe], [], []) if read else ([], [pipe], [])
        while not any(select.select(*lists, min(POLL_INTERVAL, self._seconds_left()))):
            self._check_process()

    def _open_client_pipe(self) -> int:
        """Open the client pipe as soon as the process has opened its end, and return the file descriptor."""
        while True:
            with suppress(OSError):
                return os.open(self.client_pipe_path, os.O_WRONLY | os.O_NONBLOCK)
            self._pause()

    def _pause(self) -> None:
        """Sleep briefly while the process opens its end."""
        self._check_process()
        self._seconds_left()
        time.sleep(POLL_INTERVAL / 10)

    def _set_clock(self, seconds: float | None) -> None:
        """Start the time limit of one message; None means a day."""
        self._clock = Clock(DAY if seconds is None else seconds)

    def _seconds_left(self) -> float:
        """Return the seconds left for this message. Raises `ThorTimeout` when there are none."""
        try:
            return self._clock.timeout()
        except TimeoutError as error:
            reason = f"no complete reply within {self._clock.seconds:g} s"
            raise ThorTimeout(reason, seconds=self._clock.elapsed) from error

    def _check_process(self) -> None:
        process = self.unity_proc
        if process is not None and process.poll() is not None:
            raise ThorGone(f"the process has ended{self._exit_status()}", seconds=self._clock.elapsed)

    def _exit_status(self) -> str:
        """Return the exit status as text, or "". Wait up to 1 s: a process that has closed its pipe is about to end."""
        process = self.unity_proc
        if process is None:
            return ""
        with suppress(TimeoutExpired):
            return f" with exit status {process.wait(timeout=1)}"
        return ""


class BoundedWsgiServer(WsgiServer):
    """Server of ai2thor's HTTP protocol; `stop` frees its port. Raises `ThorTimeout`, `ThorGone` and `ThorAnswer`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.app.register_error_handler(Exception, self._report_error)

    def receive(self, timeout: float | None = None) -> Event:
        limit = self.timeout if timeout is None else timeout
        try:
            reply = super().receive(limit)
        except UnityCrashException as error:
            raise ThorGone(str(error)) from error
        except TimeoutError as error:
            raise ThorTimeout(f"no reply within {limit:g} s", seconds=limit) from error
        if isinstance(reply, ThorAnswer):
            raise reply
        return reply

    def stop(self) -> None:
        if self.stopped:
            return
        kill(self.unity_proc)
        self.stopped = True
        with suppress(Full):
            self.response_queue.put_nowait({})  # ends a request that waits for its next action
        if self.started:
            self.wsgi_server.shutdown()
            self.server_thread.join(JOIN_TIMEOUT)
        self.wsgi_server.server_close()

    def _report_error(self, error: Exception) -> Any:
        """Return HTTP errors. Send other errors to the waiting caller, as text: error objects would keep files open."""
        if isinstance(error, HTTPException):
            return error
        with suppress(Full):
            self.request_queue.put_nowait(ThorAnswer(f"{type(error).__name__}: {error}"))
        return "", 500
