"""Websockets with timeouts for a busy machine."""

from __future__ import annotations

from functools import partial

from websockets.sync import client, server

from tests.waiting import PATIENCE

connect = partial(client.connect, open_timeout=PATIENCE, ping_interval=None)
serve = partial(server.serve, open_timeout=PATIENCE, ping_interval=None)
