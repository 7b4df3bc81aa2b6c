"""Protocols for uvicorn: HTTP with a time limit for request headers, and websockets that can be rejected."""

from __future__ import annotations

import asyncio

import h11
from starlette.types import Message
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

HEADER_SECONDS = 10.0  # seconds from the connection, or a request's first byte, to the end of its headers


class TimedProtocol(H11Protocol):
    """HTTP for ``uvicorn.Config(http=...)`` that closes connections whose headers are not complete in time."""

    seconds = HEADER_SECONDS
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._update_deadline()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def _update_deadline(self) -> None:
        """Run the timer while headers arrive, or the rest of an answered request. Else uvicorn's own timer runs."""
        is_idle = self.conn.their_state is h11.IDLE
        is_draining = self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY
        is_waiting = (is_idle or is_draining) and not self.transport.is_closing()
        if not is_waiting:
            self._cancel_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.seconds, self.timeout_keep_alive_handler)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class RefusableSocket(WebSocketsSansIOProtocol):
    """Websockets for ``uvicorn.Config(ws=...)`` that log no error when a handshake is rejected with a response.

    uvicorn (0.54) would log an error for each rejection, since it does not treat the response as the handshake's end.
    """

    async def send(self, message: Message) -> None:  # type: ignore[override]
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True
