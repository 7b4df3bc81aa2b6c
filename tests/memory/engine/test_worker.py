from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from concurrent.futures import Future, wait
from functools import partial
from typing import ClassVar

import pytest
import torch

from keep_agent.errors import ModelError
from memory.engine.base import Priority
from memory.engine.models.tiny_models import tiny_model
from memory.engine.transfer.executor import Transport
from memory.engine.transformers.engine import TIDY_INTERVAL, TransformersEngine, Worker
from memory.loading.serial import Serial
from memory.recompute.full import Full
from tests.laws.prompts import Prompt
from tests.waiting import PATIENCE, until


def test_plans_go_before_background_work_in_order_of_arrival() -> None:
    worker, started, release = Worker(), threading.Event(), threading.Event()
    done: list[str] = []

    def block() -> None:
        started.set()
        release.wait(PATIENCE)

    worker.submit(block, Priority.BACKGROUND)
    started.wait(PATIENCE)
    futures = [
        worker.submit(lambda name=name: done.append(name), priority)
        for name, priority in [
            ("encode 1", Priority.BACKGROUND), ("plan 1", Priority.PLAN), ("encode 2", Priority.BACKGROUND),
            ("plan 2", Priority.PLAN),
        ]
    ]  # fmt: skip
    release.set()
    for future in futures:
        future.result(PATIENCE)
    assert done == ["plan 1", "plan 2", "encode 1", "encode 2"]
    worker.close()


def test_errors_reach_the_caller_and_the_worker_lives_on() -> None:
    worker = Worker()
    with pytest.raises(ZeroDivisionError):
        worker.call(lambda: 1 / 0)
    assert worker.call(lambda: (torch.is_inference_mode_enabled(), worker.call(lambda: 7))) == (True, 7)
    worker.close()
    worker.close()
    with pytest.raises(ModelError, match="closed"):
        worker.submit(lambda: None)


@pytest.mark.parametrize("end", ["result", "error", "cancelled"])
def test_a_waiting_worker_keeps_no_work_alive(end: str) -> None:
    class Work:
        def __call__(self) -> None:
            if end == "error":
                raise ValueError(end)

    worker, release, work = Worker(), threading.Event(), Work()
    gone = weakref.ref(work)
    worker.submit(lambda: release.wait(PATIENCE))
    future = worker.submit(work)
    if end == "cancelled":
        assert future.cancel()
    release.set()
    wait([future], PATIENCE)
    del work, future
    until(lambda: gc.collect() >= 0 and gone() is None)  # it lets go just after the result is out
    worker.close()


class DelayedFuture(Future):  # type: ignore[type-arg]
    """A future whose thread stands still as soon as it has told the end."""

    release: ClassVar[threading.Event]

    def set_result(self, result: object) -> None:
        super().set_result(result)
        self.release.wait(PATIENCE)

    def set_exception(self, exception: BaseException | None) -> None:
        super().set_exception(exception)
        self.release.wait(PATIENCE)


@pytest.mark.usefixtures("garbage_stays")
@pytest.mark.parametrize("fails", [False, True])
def test_what_a_call_has_returned_is_held_by_nobody_else(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """Rows of a session that is closed are free then, however late the thread goes on."""

    class Rows:
        pass

    DelayedFuture.release = threading.Event()
    monkeypatch.setattr("memory.engine.transformers.engine.Future", DelayedFuture)
    worker, gone = Worker(), []

    def work(rows: Rows) -> Rows:
        if fails:
            raise ValueError("no rows")
        return rows

    def call() -> None:
        rows = Rows()
        gone.append(weakref.ref(rows))
        if not fails:
            assert worker.call(partial(work, rows)) is rows
            return
        try:
            worker.call(partial(work, rows))
        except ValueError as error:
            assert str(error) == "no rows"

    try:
        call()
        assert gone[0]() is None
    finally:
        DelayedFuture.release.set()
        worker.close()


def test_nothing_is_kept_alive_while_the_worker_tidies() -> None:
    class Work:
        def __call__(self) -> None:
            pass

    tidying, release, work = threading.Event(), threading.Event(), Work()

    def tidy() -> None:
        tidying.set()
        release.wait(PATIENCE)

    worker, gone = Worker(tidy=tidy), weakref.ref(work)
    for _ in range(TIDY_INTERVAL - 1):
        worker.call(lambda: None)
    future = worker.submit(work)
    assert tidying.wait(PATIENCE)
    del work, future
    assert gone() is None
    release.set()
    worker.close()


def test_the_worker_computes_with_as_many_threads_as_its_caller() -> None:
    worker, before = Worker(), torch.get_num_threads()
    try:
        for threads in (2, 1, 2):
            torch.set_num_threads(threads)
            assert worker.call(torch.get_num_threads) == threads
    finally:
        torch.set_num_threads(before)
        worker.close()


def test_it_tidies_up_between_pieces_of_work() -> None:
    order: list[int | str] = []
    worker = Worker(tidy=lambda: order.append("tidied"))
    for number in range(2 * TIDY_INTERVAL + 1):
        worker.call(partial(order.append, number))
    worker.close()
    assert [place for place, what in enumerate(order) if what == "tidied"] == [TIDY_INTERVAL, 2 * TIDY_INTERVAL + 1]


def test_who_closes_again_waits_too() -> None:
    order: list[str] = []
    worker, again = Worker(), threading.Event()

    def work() -> None:
        until(again.is_set)
        order.append("done")

    def close() -> None:
        worker.close()
        order.append("closed")

    worker.submit(work)
    first = threading.Thread(target=close)
    first.start()
    until(lambda: worker._closed)
    again.set()
    close()
    first.join()
    assert order == ["done", "closed", "closed"]


def test_a_gpu_is_the_workers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams that are named without a device are then those that the model computes on."""
    selection: list[tuple[object, str]] = []
    monkeypatch.setattr(
        torch.cuda, "set_device", lambda device: selection.append((device, threading.current_thread().name))
    )
    second = torch.device("cuda:1")
    worker = Worker(device=second)
    worker.call(lambda: None)
    worker.close()
    transport = Transport.of("thread", second, None, "before")
    transport.link.submit(int).result()
    transport.close()
    assert [device for device, _ in selection] == [second, second]
    assert selection[0][1] == "engine" and selection[1][1].startswith("link")


def test_closing_finishes_what_is_queued() -> None:
    worker = Worker()
    futures = [worker.submit(lambda i=i: i, Priority.BACKGROUND) for i in range(50)]
    worker.close()
    assert [future.result(0) for future in futures] == list(range(50))


def test_a_job_is_run_or_refused_while_another_thread_closes() -> None:
    """Every caller gets an answer."""
    worker = Worker()
    put, closer = worker._jobs.put, threading.Thread(target=worker.close)

    def late(job: object) -> None:
        worker._jobs.put = put
        closer.start()
        closer.join(0.3)
        put(job)

    worker._jobs.put = late
    try:
        assert worker.submit(lambda: 7).result(PATIENCE) == 7
    finally:
        closer.join(PATIENCE)
    with pytest.raises(ModelError, match="closed"):
        worker.submit(lambda: 7)


def test_a_cancelled_job_does_not_run() -> None:
    worker, release, ran = Worker(), threading.Event(), []
    worker.submit(lambda: release.wait(PATIENCE))
    future = worker.submit(lambda: ran.append(1), Priority.BACKGROUND)
    assert future.cancel()
    release.set()
    worker.call(lambda: None, Priority.BACKGROUND)
    worker.close()
    assert not ran


def test_many_threads_get_the_answers_of_one() -> None:
    """Eight callers plan and encode at the same time on one engine: no state leaks between requests."""
    prompts = [Prompt.random((9, 14, 6), query=5, seed=100 * i) for i in range(8)]
    with TransformersEngine(tiny_model("gemma3_text"), "thread") as engine:
        expected = [engine.forward_plain(p.ids)[-1] for p in prompts]
        actual: dict[int, list[torch.Tensor]] = {i: [] for i in range(8)}

        def caller(i: int) -> None:
            for _ in range(5):
                later = engine.later(lambda: engine.encode([(None, unit) for unit in prompts[i].units]))
                layout = prompts[i].layout([None] * 3)
                actual[i].append(engine.prefill(layout, Full(), Serial()).logits[0])
                assert len(later.result(PATIENCE)) == 3

        threads = [threading.Thread(target=caller, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    for i, logits in actual.items():
        assert len(logits) == 5
        for item in logits:
            torch.testing.assert_close(item, expected[i], rtol=1e-4, atol=1e-4)


UNCLOSED = """
import sys, threading, time, torch
from memory.engine.base import Priority
from memory.engine.transformers.engine import Worker

begun, worker = threading.Event(), Worker()

def work():
    begun.set()
    while not any(job.priority == Priority.EXIT for job in list(worker._jobs.queue)):
        time.sleep(0.01)  # the process may be late to end
    for _ in range(300):
        torch.randn(300, 300) @ torch.randn(300, 300)
    sys.stdout.write("done ")

worker.submit(work, Priority.BACKGROUND)
worker.submit(lambda: sys.stdout.write("queued "), Priority.BACKGROUND)
begun.wait()
"""


def test_a_process_that_closes_nothing_ends_as_it_should() -> None:
    """The running job is finished, or torch would abort the process; queued jobs do not start."""
    done = subprocess.run([sys.executable, "-c", UNCLOSED], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done ", "")
