"""Messages that wait to be answered on a websocket: in order, and no more than there is room for."""

from __future__ import annotations

import asyncio

from keep_agent.server.limits.websocket_inbox import EACH, Inbox


def test_messages_come_in_order_and_no_more_than_there_is_room_for() -> None:
    async def talk() -> None:
        inbox, sizes, inside, heard = Inbox(10 + 2 * EACH), [4, 6, 1, 199, 1], [], []

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
            waiting = inside[len(heard) :]
            assert sum(waiting) + EACH * len(waiting) <= 10 + 2 * EACH or waiting == [199]
        await putting
        assert heard == list(enumerate(sizes))

    asyncio.run(talk())


def test_empty_messages_take_room_and_leave_others_their_turn() -> None:
    async def talk() -> None:
        inbox, turns = Inbox(10 * EACH), 0
        putting = asyncio.create_task(_put(inbox, 11))
        for _ in range(99):
            await asyncio.sleep(0)
        assert not putting.done(), "the eleventh has to wait"

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        working = asyncio.create_task(others())
        heard = [turns async for _ in inbox]  # each is answered at once
        assert len(heard) == 11 and len(set(heard)) > 5
        working.cancel()
        await putting

    asyncio.run(talk())


async def _put(inbox: Inbox, count: int) -> None:
    for _ in range(count):
        await inbox.put(b"")
    await inbox.end()


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
