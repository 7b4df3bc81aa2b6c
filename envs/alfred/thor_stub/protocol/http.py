"""HTTP channel: the stand-in for AI2-THOR posts its messages, and each response contains the next action."""

from __future__ import annotations

import json
import os
import time
from http.client import HTTPConnection, HTTPException
from typing import Any

from envs.alfred.thor_stub.protocol.channel import GARBAGE, ClientGone
from envs.alfred.thor_stub.simulator import ActionReply

BOUNDARY = b"keep-agent-7d44e178b0434a2f"
CHECK_INTERVAL = 0.2  # seconds between two checks of the client's process


class Http:
    """HTTP connection to the client."""

    def __init__(self, host: str, port: int, token: str) -> None:
        self._connection = HTTPConnection(host, port)
        self._token = token.encode()
        self._client = os.getppid()

    def open(self) -> None:
        """Return at once: the first message opens the connection."""

    def send(self, reply: ActionReply, garbage: bool = False, half: bool = False) -> None:
        body = b"".join(_parts(reply, self._token, garbage))
        headers = {
            "Content-Type": f"multipart/form-data; boundary={BOUNDARY.decode()}",
            "Content-Length": str(len(body)),
        }
        try:
            self._connection.request("POST", "/train", body[: len(body) // 2] if half else body, headers)
        except (OSError, HTTPException) as error:
            raise ClientGone(str(error)) from error

    def receive(self) -> dict[str, Any]:
        try:
            response = self._connection.getresponse()
            action: dict[str, Any] = json.loads(response.read())
        except (OSError, HTTPException, ValueError) as error:  # the response to an invalid token is an HTML page
            raise ClientGone(str(error)) from error
        if not action:
            raise ClientGone("the client sends no more actions")
        return action

    def idle(self) -> None:
        while os.getppid() == self._client:
            time.sleep(CHECK_INTERVAL)
        raise ClientGone("the client's process is gone")


def _parts(reply: ActionReply, token: bytes, garbage: bool) -> list[bytes]:
    """Return the parts of a multipart form, as ai2thor's own parser expects them."""
    metadata = GARBAGE[1:] if garbage else json.dumps(reply.metadata, separators=(",", ":")).encode()
    parts = [*_text(b"metadata", metadata), *_text(b"token", token)]
    if reply.image is not None:
        parts += _image(b"image", reply.image)
    for image in reply.camera_images:
        parts += _image(b"image-thirdParty-camera", image)
    return [b"\r\n", *parts, b"--", BOUNDARY, b"--\r\n"]


def _text(name: bytes, body: bytes) -> list[bytes]:
    return _part(b'form-data; name="%b"' % name, b"text/plain; charset=utf-8", body)


def _image(name: bytes, body: bytes) -> list[bytes]:
    return _part(b'form-data; name="%b"; filename="%b"' % (name, name), b"application/octet-stream", body)


def _part(disposition: bytes, kind: bytes, body: bytes) -> list[bytes]:
    head = b"--%b\r\nContent-Type: %b\r\nContent-disposition: %b\r\n\r\n" % (BOUNDARY, kind, disposition)
    return [head, body, b"\r\n"]
