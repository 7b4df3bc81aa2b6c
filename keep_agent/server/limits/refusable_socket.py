"""The websockets of uvicorn, where one that is refused with an answer leaves no error in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent


class RefusableSocket(WebSocketsSansIOProtocol):
    """For ``uvicorn.Config(ws=RefusableSocket)``.

    uvicorn (seen in 0.54) does not count a whole answer by the extension ``websocket.http.response`` as the end of the
    handshake, and logs an error for each: anybody could fill the log.
    """

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True
