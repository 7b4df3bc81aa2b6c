"""WSGI server of the client that stops with its thread and its port.

It serves builds and machines without named pipes. The server of ai2thor 5.0 keeps a thread and a listening socket for
every controller, restarts the process by itself when it ends, with a fresh room, and reports no unreadable reply.
"""

from __future__ import annotations

from contextlib import suppress
from queue import Full
from typing import Any

from ai2thor.exceptions import UnityCrashException
from ai2thor.server import Event
from ai2thor.wsgi_server import WsgiServer
from werkzeug.exceptions import HTTPException

from envs.alfred.thor.errors import ThorAnswer, ThorGone, ThorTimeout
from envs.alfred.thor.pipes import kill

JOIN = 5.0  # seconds for the thread to end


class BoundedWsgiServer(WsgiServer):
    """ai2thor's HTTP protocol. Raises `ThorTimeout`, `ThorGone` and `ThorAnswer`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.app.register_error_handler(Exception, self._unreadable)

    def receive(self, timeout: float | None = None) -> Event:
        whole = self.timeout if timeout is None else timeout
        try:
            reply = super().receive(whole)
        except UnityCrashException as error:
            raise ThorGone(str(error)) from error
        except TimeoutError as error:
            raise ThorTimeout(f"no reply within {whole:g} s", seconds=whole) from error
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
            self.server_thread.join(JOIN)
        self.wsgi_server.server_close()

    def _unreadable(self, error: Exception) -> Any:
        """Pass the text of an error, which holds no open files, to the waiting caller; HTTP errors concern no reply."""
        if isinstance(error, HTTPException):
            return error
        with suppress(Full):
            self.request_queue.put_nowait(ThorAnswer(f"{type(error).__name__}: {error}"))
        return "", 500
