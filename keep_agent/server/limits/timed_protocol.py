"""The HTTP of uvicorn, but a client has to say what it wants in time."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 10.0  # from the first byte, or from the connection, to the end of a request's headers


class TimedProtocol(H11Protocol):
    """For ``uvicorn.Config(http=TimedProtocol)``. Connections that only begin a request would else be held for ever."""

    seconds = SECONDS
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Count from the first time that a request is waited for; uvicorn does so between requests."""
        begins = self.conn.their_state is h11.IDLE
        lingers = self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY  # answered already
        waits = (begins or lingers) and not self.transport.is_closing()
        if not waits:
            self._rest()
        elif self._late is None:
            self._late = self.loop.call_later(self.seconds, self.timeout_keep_alive_handler)

    def _rest(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
