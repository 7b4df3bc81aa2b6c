"""HTTP channel: the stand-in posts its messages, and each response contains the next action."""

from __future__ import annotations

import json
import os
import time
from http.client import HTTPConnection, HTTPException
from typing import Any

from envs.alfred.thor_stub.protocol.channel import GARBAGE, ClientGone
from envs.alfred.thor_stub.simulator import Answer

BOUNDARY = b"keep-agent-7d44e178b0434a2f"
LOOK = 0.2  # seconds between two checks of the client's process


class Http:
    """HTTP connection to the client."""

    def __init__(self, host: str, port: int, token: str) -> None:
        self._connection = HTTPConnection(host, port)
        self._token = token.encode()
        self._client = os.getppid()

    def open(self) -> None:
        """Return at once: the first message opens the connection."""

    def send(self, answer: Answer, garbage: bool = False, half: bool = False) -> None:
        body = b"".join(_parts(answer, self._token, garbage))
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
            time.sleep(LOOK)
        raise ClientGone("the client's process is gone")


def _parts(answer: Answer, token: bytes, garbage: bool) -> list[bytes]:
    """Return a multipart form for the client's own parser."""
    metadata = GARBAGE[1:] if garbage else json.dumps(answer.metadata, separators=(",", ":")).encode()
    parts = [*_text(b"metadata", metadata), *_text(b"token", token)]
    if answer.image is not None:
        parts += _image(b"image", answer.image)
    for image in answer.camera_images:
        parts += _image(b"image-thirdParty-camera", image)
    return [b"\r\n", *parts, b"--", BOUNDARY, b"--\r\n"]


def _text(name: bytes, body: bytes) -> list[bytes]:
    return _part(b'form-data; name="%b"' % name, b"text/plain; charset=utf-8", body)


def _image(name: bytes, body: bytes) -> list[bytes]:
    return _part(b'form-data; name="%b"; filename="%b"' % (name, name), b"application/octet-stream", body)


def _part(disposition: bytes, kind: bytes, body: bytes) -> list[bytes]:
    head = b"--%b\r\nContent-Type: %b\r\nContent-disposition: %b\r\n\r\n" % (BOUNDARY, kind, disposition)
    return [head, body, b"\r\n"]
