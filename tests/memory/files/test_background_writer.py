"""Background writer: waiting for work and dropping it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from memory.files.background_writer import Writer
from tests.waiting import PATIENCE, until


def test_dropped_work_is_not_waited_for() -> None:
    writer, at_work, asked, gate = Writer(), threading.Event(), threading.Event(), threading.Event()

    def chosen(key: object) -> bool:
        asked.set()
        return key == "b"

    writer.put("a", lambda: at_work.set() or gate.wait(2 * PATIENCE))
    assert at_work.wait(PATIENCE)
    writer.put("b", lambda: None)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(writer.wait, chosen)
        assert asked.wait(PATIENCE)  # it holds the lock until it waits
        writer.drop(lambda key: key == "b")
        until(waiting.done)
        gate.set()
    writer.close()
