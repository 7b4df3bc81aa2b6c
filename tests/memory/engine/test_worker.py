from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
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


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.close()


def test_plans_run_before_background_work_in_order_of_arrival(worker: Worker) -> None:
    release, done = threading.Event(), []
    worker.submit(lambda: release.wait(PATIENCE))
    futures = [
        worker.submit(partial(done.append, (name, number)), priority)
        for number in (1, 2)
        for name, priority in (("encode", Priority.BACKGROUND), ("plan", Priority.PLAN))
    ]
    release.set()
    wait(futures, PATIENCE)
    assert done == [("plan", 1), ("plan", 2), ("encode", 1), ("encode", 2)]


def test_errors_reach_the_caller_and_the_worker_goes_on(worker: Worker) -> None:
    with pytest.raises(ZeroDivisionError):
        worker.call(lambda: 1 / 0)
    assert worker.call(lambda: (torch.is_inference_mode_enabled(), worker.call(lambda: 7))) == (True, 7)
    worker.close()
    worker.close()
    with pytest.raises(ModelError, match="closed"):
        worker.submit(lambda: None)


@pytest.mark.parametrize("end", ["result", "error", "cancelled"])
def test_a_waiting_worker_keeps_no_work_alive(worker: Worker, end: str) -> None:
    release, ran = threading.Event(), []
    work = partial(int if end == "error" else ran.append, "no number")
    reference = weakref.ref(work)
    worker.submit(lambda: release.wait(PATIENCE))
    future = worker.submit(work)
    assert end != "cancelled" or future.cancel()
    release.set()
    wait([future], PATIENCE)
    worker.call(lambda: None, Priority.BACKGROUND)
    assert ran == ["no number"] * (end == "result")
    del work, future
    until(lambda: gc.collect() >= 0 and reference() is None)  # the worker drops it just after the result is set


class DelayedFuture(Future):  # type: ignore[type-arg]
    """Future whose thread waits after it has set the result."""

    release: ClassVar[threading.Event]

    def set_result(self, result: object) -> None:
        super().set_result(result)
        self.release.wait(PATIENCE)

    def set_exception(self, exception: BaseException | None) -> None:
        super().set_exception(exception)
        self.release.wait(PATIENCE)


@pytest.mark.usefixtures("garbage_stays")
@pytest.mark.parametrize("fails", [False, True])
def test_only_the_caller_keeps_a_result_alive(worker: Worker, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """The rows of a closed session are freed, however late the worker's thread continues."""
    DelayedFuture.release = threading.Event()
    monkeypatch.setattr("memory.engine.transformers.engine.Future", DelayedFuture)

    def work(rows: set[int]) -> set[int]:
        if fails:
            raise ValueError("no rows")
        return rows

    def call() -> weakref.ref[set[int]]:
        rows = {1, 2}
        try:
            assert worker.call(partial(work, rows)) is rows
        except ValueError as error:
            assert fails and str(error) == "no rows"
        return weakref.ref(rows)

    try:
        assert call()() is None
    finally:
        DelayedFuture.release.set()


def test_nothing_is_kept_alive_while_the_worker_tidies() -> None:
    tidying, release, work = threading.Event(), threading.Event(), partial(int)

    def tidy() -> None:
        tidying.set()
        release.wait(PATIENCE)

    worker, reference = Worker(tidy=tidy), weakref.ref(work)
    for _ in range(TIDY_INTERVAL - 1):
        worker.call(lambda: None)
    future = worker.submit(work)
    assert tidying.wait(PATIENCE)
    del work, future
    assert reference() is None
    release.set()
    worker.close()


def test_the_worker_computes_with_as_many_threads_as_its_caller(worker: Worker) -> None:
    before = torch.get_num_threads()
    try:
        for threads in (2, 1, 2):
            torch.set_num_threads(threads)
            assert worker.call(torch.get_num_threads) == threads
    finally:
        torch.set_num_threads(before)


def test_the_worker_tidies_between_jobs() -> None:
    order: list[int | str] = []
    worker = Worker(tidy=lambda: order.append("tidied"))
    for number in range(2 * TIDY_INTERVAL + 1):
        worker.call(partial(order.append, number))
    worker.close()
    assert [place for place, what in enumerate(order) if what == "tidied"] == [TIDY_INTERVAL, 2 * TIDY_INTERVAL + 1]


def test_a_second_close_waits_too(worker: Worker) -> None:
    order, again = [], threading.Event()

    def work() -> None:
        until(again.is_set)
        order.append("done")

    def close() -> None:
        worker.close()
        order.append("closed")

    worker.submit(work)
    with ThreadPoolExecutor(1) as threads:
        threads.submit(close)
        until(lambda: worker._closed)
        again.set()
        close()
    assert order == ["done", "closed", "closed"]


def test_threads_of_an_engine_choose_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA streams that name no device then belong to the model's GPU."""
    selection: list[tuple[object, str]] = []

    def choose(device: object) -> None:
        selection.append((device, threading.current_thread().name))

    monkeypatch.setattr(torch.cuda, "set_device", choose)
    second = torch.device("cuda:1")
    worker = Worker(device=second)
    worker.call(lambda: None)
    worker.close()
    transport = Transport.of("thread", second, None, "before")
    transport.link.submit(int).result()
    transport.close()
    assert [device for device, _ in selection] == [second, second]
    assert selection[0][1] == "engine" and selection[1][1].startswith("link")


def test_close_finishes_queued_jobs(worker: Worker) -> None:
    futures = [worker.submit(lambda i=i: i, Priority.BACKGROUND) for i in range(50)]
    worker.close()
    assert [future.result(0) for future in futures] == list(range(50))


def test_a_job_runs_or_is_refused_while_another_thread_closes(worker: Worker) -> None:
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


def test_eight_threads_plan_and_encode_on_one_engine() -> None:
    prompts = [Prompt.random((9, 14, 6), query=5, seed=100 * i) for i in range(8)]
    with TransformersEngine(tiny_model("gemma3_text"), "thread") as engine:
        expected = [engine.forward_plain(p.ids)[-1] for p in prompts]

        def caller(i: int) -> None:
            for _ in range(5):
                later = engine.in_background(lambda: engine.encode([(None, unit) for unit in prompts[i].units]))
                logits = engine.prefill(prompts[i].layout([None] * 3), Full(), Serial()).logits[0]
                torch.testing.assert_close(logits, expected[i], rtol=1e-4, atol=1e-4)
                assert len(later.result(PATIENCE)) == 3

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(caller, range(8), timeout=PATIENCE))


UNCLOSED = """
import sys, threading, time, torch
from memory.engine.base import Priority
from memory.engine.transformers.engine import Worker

started, worker = threading.Event(), Worker()

def work():
    started.set()
    while not any(job.priority == Priority.EXIT for job in list(worker._jobs.queue)):
        time.sleep(0.01)  # the process may be late to end
    for _ in range(300):
        torch.randn(300, 300) @ torch.randn(300, 300)
    sys.stdout.write("done ")

worker.submit(work, Priority.BACKGROUND)
worker.submit(lambda: sys.stdout.write("queued "), Priority.BACKGROUND)
started.wait()
"""


def test_a_process_that_closes_no_worker_finishes_the_running_job_alone() -> None:
    """torch would abort a process that exits during a running job."""
    done = subprocess.run([sys.executable, "-c", UNCLOSED], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done ", "")
