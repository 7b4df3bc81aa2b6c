"""The client's WSGI server, which takes its thread and its port with it when it stops.

For builds and machines without named pipes. The one of ai2thor 5.0 keeps a thread and a listening socket for every
controller there ever was, answers the end of the process with a restart of its own, in a room as new, and tells nobody
of an answer that it cannot read.
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
from envs.alfred.thor.processes import kill

JOIN = 5.0  # seconds for the thread to end


class BoundedWsgiServer(WsgiServer):
    """Raises `ThorTimeout`, `ThorGone` and `ThorAnswer`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.app.register_error_handler(Exception, self._unreadable)

    def receive(self, timeout: float | None = None) -> Event:
        whole = self.timeout if timeout is None else timeout
        try:
            found = super().receive(whole)
        except UnityCrashException as error:
            raise ThorGone(str(error)) from error
        except TimeoutError as error:
            raise ThorTimeout(f"no answer within {whole:g} s", seconds=whole) from error
        if isinstance(found, ThorAnswer):
            raise found
        return found

    def stop(self) -> None:
        if self.stopped:
            return
        kill(self.unity_proc)
        self.stopped = True
        with suppress(Full):
            self.response_queue.put_nowait({})  # frees a request that waits for its next action
        if self.started:
            self.wsgi_server.shutdown()
            self.server_thread.join(JOIN)
        self.wsgi_server.server_close()

    def _unreadable(self, error: Exception) -> Any:
        """Tell who waits for the answer; what is only bad HTTP is nobody's answer.

        Its words only: the error itself would keep files of the connection open.
        """
        if isinstance(error, HTTPException):
            return error
        with suppress(Full):
            self.request_queue.put_nowait(ThorAnswer(f"{type(error).__name__}: {error}"))
        return "", 500
