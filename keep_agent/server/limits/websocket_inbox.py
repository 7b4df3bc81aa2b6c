"""Messages of a websocket that wait to be answered."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

EACH = 64  # bytes that a message takes besides its own


class Inbox:
    """Keeps messages in their order, ``most`` bytes of them together, or a single larger one.

    Each counts some bytes more, so that empty ones cannot be without number.
    """

    def __init__(self, most: int) -> None:
        self._most, self._bytes, self._ended = most, 0, False
        self._waiting: deque[bytes] = deque()
        self._changed = asyncio.Condition()

    async def put(self, message: bytes) -> None:
        """Returns when there is room for it."""
        async with self._changed:
            size = len(message) + EACH
            await self._changed.wait_for(lambda: not self._waiting or self._bytes + size <= self._most)
            self._waiting.append(message)
            self._bytes += size
            self._changed.notify_all()

    async def end(self) -> None:
        """No more will come."""
        async with self._changed:
            self._ended = True
            self._changed.notify_all()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Until the end, those that still wait included."""
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._waiting or self._ended)
                if not self._waiting:
                    return
                message = self._waiting.popleft()
                self._bytes -= len(message) + EACH
                self._changed.notify_all()
            await asyncio.sleep(0)  # many that are quickly answered leave others their turn
            yield message
