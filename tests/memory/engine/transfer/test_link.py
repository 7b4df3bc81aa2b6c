"""Links, throttles and buffers of transfers."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from keep_agent.errors import ConfigError
from memory.engine.transfer.executor import Staging, TransferExecutor, Transport
from memory.engine.transfer.link import Throttle
from memory.prompt.layout import Transfer
from tests.waiting import PATIENCE, FakeTime

CPU = torch.device("cpu")


def test_auto_takes_a_thread_only_for_a_slow_link() -> None:
    quick, slow = Transport.of("auto", CPU, None, "before"), Transport.of("auto", CPU, Throttle(16), "before")
    assert quick.link is None and slow.link is not None and slow.stream is None and slow.chooser is None
    slow.close()


@pytest.mark.parametrize(
    ("make", "values", "message"),
    [
        (Transport.of, ("stream", CPU, None, "before"), "does not work on cpu"),
        (Transport.of, ("bus", CPU, None, "before"), "'bus'"),
        (Transport.of, ("inline", CPU, None, "after"), "'after'"),
        *((Throttle, values, "is not a link") for values in ((0.0, 1.0), (-1.0, 0.0), (1.0, -1.0))),
    ],
)
def test_impossible_transports_and_links_are_refused(make: Any, values: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(*values)


def test_a_throttled_job_takes_as_long_as_the_link_would(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeTime()
    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr(time, "sleep", clock.sleep)
    link = Throttle(gigabytes=0.1, microseconds=2000)
    assert link.seconds(1_000_000) == pytest.approx(0.012)
    assert link.delay(0.0, 1_000_000) == clock.elapsed == pytest.approx(0.012)
    link.delay(-1.0, 1_000_000)  # the copy itself took longer
    assert clock.elapsed == pytest.approx(0.012)


def test_buffers_are_made_once_and_grow() -> None:
    staging, like = Staging(), torch.empty(0, dtype=torch.bfloat16)
    first = staging.take("k", (2, 3, 4), like)
    assert first.shape == (2, 3, 4) and first.dtype == torch.bfloat16
    assert staging.take("k", (6, 2), like).data_ptr() == first.data_ptr()
    assert staging.take("v", (2,), like).data_ptr() != first.data_ptr()
    assert staging.take("k", (100,), like).numel() == 100


IDLE_MOVER: Any = SimpleNamespace(  # a mover that moves nothing
    row_bytes=1,
    layout=SimpleNamespace(rows=8),
    spans=lambda runs: [rows for _, rows in runs],
    move=lambda first, last, runs: (last - first) * sum(stop - start for _, (start, stop) in runs),
)


def test_a_job_never_begins_before_it_is_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job submitted before the link's thread wakes up begins at its submission, not at the end of the first job."""
    clock, over, awake, starts = FakeTime(), threading.Event(), threading.Event(), []
    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr(time, "sleep", clock.sleep)

    class Late(Throttle):
        def delay(self, started: float, nbytes: int) -> float:
            starts.append(started)
            end = super().delay(started, nbytes)
            over.set()
            assert awake.wait(PATIENCE)
            return end

    transport = Transport.of("thread", CPU, Late(gigabytes=1e-9), "before")
    loader = TransferExecutor(IDLE_MOVER, 4, transport)
    loader.submit(0, [Transfer(0, 0, 1, (0, 4))])
    assert over.wait(PATIENCE)
    clock.elapsed = 10.0  # the job ended at 4
    loader.submit(1, [Transfer(0, 2, 4, (0, 4))])
    awake.set()
    loader.finish()
    transport.close()
    assert starts == pytest.approx([0, 10, 14]), "jobs submitted together follow without a gap"


def test_a_closed_link_raises_instead_of_waiting() -> None:
    transport = Transport.of("thread", CPU, None, "before")
    loader = TransferExecutor(IDLE_MOVER, 2, transport)
    transport.close()
    with pytest.raises(RuntimeError, match="after shutdown"):
        loader.submit(0, [Transfer(0, 0, 1, (0, 4))])
    loader.cancel()
