"""Messages that wait to be answered on a websocket: in order, and no more than there is room for."""

from __future__ import annotations

import asyncio

from keep_agent.server.inbox import Inbox


def test_messages_come_in_order_and_no_more_than_there_is_room_for() -> None:
    async def talk() -> None:
        inbox, sizes, inside, heard = Inbox(10), [4, 6, 1, 99, 1], [], []

        async def put() -> None:
            for number, size in enumerate(sizes):
                await inbox.put(bytes([number]) * size)
                inside.append(size)
            await inbox.end()

        putting = asyncio.create_task(put())
        while len(inside) < 2:
            await asyncio.sleep(0)
        for _ in range(9):
            await asyncio.sleep(0)
        assert inside == [4, 6], "the third has to wait"
        async for message in inbox:
            heard.append((message[0], len(message)))
            waiting = sum(inside[len(heard) :])
            assert waiting <= 10 or waiting == 99
        await putting
        assert heard == list(enumerate(sizes))

    asyncio.run(talk())


def test_the_end_is_heard_by_who_waits() -> None:
    async def talk() -> list[bytes]:
        inbox = Inbox(10)
        reading = asyncio.create_task(_all(inbox))
        await asyncio.sleep(0)
        await inbox.end()
        return await reading

    assert asyncio.run(talk()) == []


async def _all(inbox: Inbox) -> list[bytes]:
    return [message async for message in inbox]
