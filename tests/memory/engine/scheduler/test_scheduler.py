"""Scheduler: tokens of requests, their turns, and requests that end early."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keep_agent.errors import CapacityError, ConfigError, KeepError, ModelError
from memory.engine.base import ChunkSchedule, Engine
from memory.engine.models.tiny_models import tiny_model
from memory.engine.scheduler.batch import Member
from memory.engine.scheduler.request_stream import FinishReason, Stream
from memory.engine.scheduler.scheduler import Scheduler, SchedulerConfig
from memory.engine.transformers.engine import TransformersEngine
from memory.kv_cache.kv_pool import KVPool
from memory.kv_cache.paged import PagedCache
from memory.kv_cache.quantization import PackFormat
from memory.kv_cache.quantized import QuantizedCache
from tests.waiting import PATIENCE, until

FEW = 16
CONFIG = SchedulerConfig(shared_chunk=FEW, warm=2, batch=3)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """Engine in float64, in which rounding differences between a batch and a single request do not matter."""
    model = tiny_model("qwen2_sliding", layers=2, dtype=torch.float64, max_position_embeddings=2048)
    with TransformersEngine(model) as outputs:
        yield outputs


@pytest.fixture
def manual(engine: Engine) -> Scheduler:
    return Scheduler(engine, CONFIG, automatic=False)


def some_ids(count: int, seed: int = 0) -> list[int]:
    return torch.randint(5, 500, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def pool_of(engine: Engine, capacity: int | None = None) -> KVPool:
    spec = engine.info
    return KVPool(spec.layers, spec.kv_heads, spec.head_dim, spec.dtype, engine.device, capacity)


def packed(engine: Engine) -> QuantizedCache:
    return QuantizedCache(engine.info, PackFormat(8, 32), engine.device)


def paged(engine: Engine) -> PagedCache:
    return PagedCache(pool_of(engine))


def alone(engine: Engine, ids: Sequence[int], count: int, cache: Member | None = None) -> list[int]:
    """Return the tokens of one request without a scheduler.

    If a prompt fills a page, the result depends on its chunks: the chunk that fills the page sees its rows packed.
    """
    cache = packed(engine) if cache is None else cache
    return engine.generate(cache, engine.extend(cache, ids).logits, count)


def test_every_request_equals_the_same_request_alone(engine: Engine, manual: Scheduler) -> None:
    """Packed and paged caches, short and long prompts, and more sequences than decode at once."""
    pool, lengths = pool_of(engine), (5, 50, 200, 40, 1, 17)
    caches = [packed(engine) if i % 2 else PagedCache(pool) for i in range(6)]
    streams = [manual.submit(f"agent {i}", caches[i], some_ids(n, i), 16 + i) for i, n in enumerate(lengths)]
    manual.run_until_idle()
    for i, (n, cache, stream) in enumerate(zip(lengths, caches, streams, strict=True)):
        twin = packed(engine) if i % 2 else PagedCache(pool)
        assert stream.collect() == alone(engine, some_ids(n, i), 16 + i, twin)
        assert stream.reason is FinishReason.LENGTH and stream.trace.active_rows == [n, n]
        assert cache.tokens == twin.tokens == some_ids(n, i) + stream.tokens
        torch.testing.assert_close(cache.logits, twin.logits)


def test_stop_ids_end_a_request_before_they_enter_the_cache(engine: Engine, manual: Scheduler) -> None:
    ids = some_ids(30)
    expected = alone(engine, ids, 12)
    for at in (0, 5):
        stop, cache = expected[at], packed(engine)
        stream = manual.submit("a", cache, ids, 12, [stop])
        manual.run_until_idle()
        assert stream.collect() == expected[: expected.index(stop)] and stream.reason is FinishReason.STOP
        assert cache.tokens == ids + stream.tokens


def test_requests_of_one_agent_run_in_order(engine: Engine, manual: Scheduler) -> None:
    """The second request chooses its tokens when it sees the first one's rows; another agent waits for the cache."""
    cache, lengths = packed(engine), []

    def later(cache: Member) -> list[int]:
        lengths.append(len(cache.tokens))
        return some_ids(4, 1)

    first, second = manual.submit("a", cache, some_ids(50), 5), manual.submit("a", cache, later, 5)
    peer, third = manual.submit("b", packed(engine), some_ids(3), 5), manual.submit("c", cache, some_ids(2, 2), 3)
    manual.run_until_idle()
    assert first.last_turn <= second.first_turn <= second.last_turn <= third.first_turn
    assert lengths == [55] and peer.first_turn < first.first_turn
    twin = packed(engine)
    for stream, ids, count in ((first, some_ids(50), 5), (second, some_ids(4, 1), 5), (third, some_ids(2, 2), 3)):
        assert stream.collect() == alone(engine, ids, count, twin)


def test_a_late_short_request_does_not_wait_for_a_long_prefill(engine: Engine, manual: Scheduler) -> None:
    long = manual.submit("long", paged(engine), some_ids(40 * FEW), 4)
    peer = manual.submit("peer", packed(engine), some_ids(2 * FEW), 60)  # its decoding makes the chunks small
    for _ in range(6):
        manual.turn()
    assert peer.first_turn is not None and len(peer) > 1, "decoding goes on meanwhile"
    late = manual.submit("late", packed(engine), some_ids(FEW, 1), 5)
    manual.turn()
    assert late.first_turn == late.submitted_turn + 1, "warm: in the turn that takes it"
    manual.run_until_idle()
    assert late.last_turn < long.first_turn, "the short request ends before the long one decodes"
    assert long.first_turn >= 40 - 6
    assert long.collect() == alone(engine, some_ids(40 * FEW), 4, paged(engine))


def test_the_chunks_of_a_single_request_are_large(engine: Engine) -> None:
    scheduler = Scheduler(engine, SchedulerConfig(ChunkSchedule(steps=((100, 50),), rest=100), 10), automatic=False)
    stream = scheduler.submit("a", packed(engine), some_ids(300), 1)
    scheduler.run_until_idle()
    assert stream.first_turn == 1 + 4, "accepted, then chunks of 50, 50, 100 and 100"


def test_the_queue_is_round_robin(engine: Engine, manual: Scheduler) -> None:
    """Long prompts of the same length share the turns, and end one after another."""
    streams = [manual.submit(str(i), packed(engine), some_ids(6 * FEW, i), 1) for i in range(3)]
    short = manual.submit("short", packed(engine), some_ids(2 * FEW, 9), 1)
    manual.run_until_idle()
    assert short.first_turn == 1 + 2 * 4
    assert [stream.first_turn for stream in streams] == [1 + 2 * 4 + 3 * 4 - 2 + i for i in range(3)]


def test_warm_requests_leave_room_for_others(engine: Engine, manual: Scheduler) -> None:
    """A turn starts two of any number of warm requests, and computes a chunk of a queued one."""
    long = manual.submit("long", packed(engine), some_ids(4 * FEW), 1)
    manual.turn()
    flood = [manual.submit(f"w{i}", packed(engine), some_ids(3, i), 1) for i in range(20)]
    manual.run_until_idle()
    assert long.first_turn == 1 + 4
    assert [stream.first_turn for stream in flood] == [2 + i // 2 for i in range(20)]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 70), st.integers(1, 5)), min_size=1, max_size=9))
@settings(max_examples=15)
def test_no_request_starves(engine: Engine, arrivals: list[tuple[int, int, int]]) -> None:
    """A request of n chunks waits for at most n chunks of each other request; equal arrivals take equal turns."""
    first_run, second_run = _turns(engine, arrivals), _turns(engine, arrivals)
    assert first_run == second_run
    chunks = [-(-rows // FEW) for _, rows, _ in arrivals]
    rounds, longest = -(-len(arrivals) // CONFIG.batch), max(count for _, _, count in arrivals)
    for (first, last), chunk, (_, _, count) in zip(first_run, chunks, arrivals, strict=True):
        assert first <= 1 + sum(min(chunk, peer) for peer in chunks) + len(arrivals)
        assert last - first <= rounds * longest + 1 or count == 1


def _turns(engine: Engine, arrivals: Sequence[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Count the turns from each submission to its first token and to its end."""
    scheduler, streams, turn = Scheduler(engine, CONFIG, automatic=False), {}, 0
    while len(streams) < len(arrivals) or not all(stream.done for stream in streams.values()):
        for i, (when, rows, count) in enumerate(arrivals):
            if when <= turn and i not in streams:
                streams[i] = scheduler.submit(str(i), packed(engine), some_ids(rows, i), count)
        scheduler.turn()
        turn += 1
    ordered = [streams[i] for i in range(len(arrivals))]
    return [(stream.first_turn - stream.submitted_turn, stream.last_turn - stream.submitted_turn) for stream in ordered]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=4), st.booleans())
@settings(max_examples=15)
def test_a_cancelled_request_leaves_its_computed_rows(
    engine: Engine, cancels: list[tuple[int, int]], paged: bool
) -> None:
    """A request cancelled at any time affects no other, and its cache can be used further."""
    pool, scheduler, lengths = pool_of(engine), Scheduler(engine, CONFIG, automatic=False), (3 * FEW, 5, 40, 9)
    caches = [PagedCache(pool) if paged else packed(engine) for _ in lengths]
    streams = [scheduler.submit(str(i), caches[i], some_ids(n, i), 4) for i, n in enumerate(lengths)]
    for turn in range(10):
        for number in {which for when, which in cancels if when == turn}:
            streams[number].cancel()
        scheduler.turn()
    scheduler.run_until_idle()
    for i, (stream, cache, n) in enumerate(zip(streams, caches, lengths, strict=True)):
        tokens, whole = stream.collect(), alone(engine, some_ids(n, i), 4)
        done, length = some_ids(n, i) + whole, len(cache.tokens)
        assert (cache.requests, cache.length, cache.tokens) == (0, length, done[:length])
        assert tokens == whole[: len(tokens)]
        if stream.reason is FinishReason.LENGTH:
            assert tokens == whole and cache.tokens == done
        elif tokens:
            assert length == n + len(tokens) - 1, "the row of the last token is not computed"
        if rest := done[length:]:
            twin = packed(engine)
            engine.extend(twin, done)
            torch.testing.assert_close(engine.extend(cache, rest).logits, twin.logits, rtol=0.1, atol=0.1)
    pool.check_integrity()


def test_an_error_ends_only_its_request(engine: Engine, manual: Scheduler) -> None:
    def broken(cache: Member) -> list[int]:
        raise ConfigError("no such house")

    small = pool_of(engine, capacity=24)
    good = manual.submit("good", packed(engine), some_ids(60), 9)
    sharing = manual.submit("sharing", PagedCache(small), some_ids(6), 5)
    failing: list[tuple[type[KeepError], str, Stream]] = [
        (ConfigError, "no such house", manual.submit("a", packed(engine), broken, 3)),
        (ConfigError, "token 999999 has no embedding", manual.submit("b", packed(engine), [5, 999_999], 3)),
        (ConfigError, "no new token", manual.submit("c", packed(engine), [], 3)),
        (CapacityError, "do not fit", manual.submit("d", PagedCache(small), some_ids(8), 30)),
    ]
    after = manual.submit("d", packed(engine), some_ids(9), 3)
    manual.run_until_idle()
    for kind, words, stream in failing:
        with pytest.raises(kind, match=words):
            stream.collect()
        assert stream.reason is FinishReason.ERROR and stream.request.cache.requests == 0
    assert len(failing[-1][2]) > 1, "its first tokens fit"
    assert good.collect() == alone(engine, some_ids(60), 9)
    assert sharing.collect() == alone(engine, some_ids(6), 5, paged(engine))
    assert after.collect() == alone(engine, some_ids(9), 3)


def test_a_failing_forward_ends_the_request_of_the_broken_cache(engine: Engine, manual: Scheduler) -> None:
    caches = [packed(engine) for _ in range(3)]
    streams = [manual.submit(str(i), caches[i], some_ids(60, i), 12) for i in range(3)]
    while streams[2].first_turn is None:
        manual.turn()
    caches[1].tail = caches[1].tail[..., :3]
    manual.run_until_idle()
    assert [stream.reason for stream in streams] == [FinishReason.LENGTH, FinishReason.ERROR, FinishReason.LENGTH]
    for i in (0, 2):
        assert streams[i].collect() == alone(engine, some_ids(60, i), 12)


def test_the_hook_of_a_request_runs_before_its_stream_ends(engine: Engine, manual: Scheduler) -> None:
    ends: list[tuple[str, FinishReason, int, bool]] = []

    def done(stream: Stream, reason: FinishReason) -> None:
        ends.append((stream.request.agent, reason, len(stream.request.cache.tokens), stream.done))

    def failing(stream: Stream, reason: FinishReason) -> None:
        raise OSError("disk full")

    cache = packed(engine)
    manual.submit("a", cache, some_ids(5), 3, done=done)
    second = manual.submit("a", cache, some_ids(5), 3, done=done)
    manual.submit("b", packed(engine), some_ids(90), 3, done=done).cancel()
    assert cache.requests == 2
    third = manual.submit("c", packed(engine), some_ids(4), 2, done=failing)
    manual.submit("d", packed(engine), [], 2, done=done)
    manual.run_until_idle()
    assert ends == [
        ("b", FinishReason.CANCELLED, 0, False), ("d", FinishReason.ERROR, 0, False),
        ("a", FinishReason.LENGTH, 8, False), ("a", FinishReason.LENGTH, 16, False),
    ]  # fmt: skip
    assert len(second.collect()) == 3 and cache.requests == 0
    with pytest.raises(OSError, match="disk full"):
        third.collect()


def test_streams_of_many_threads_between_plans(engine: Engine) -> None:
    def caller(i: int) -> list[list[int]]:
        cache = paged(engine)
        return [list(scheduler.submit(str(i), cache, some_ids(5 + 20 * i, turn), 5)) for turn in range(2)]

    with Scheduler(engine, CONFIG) as scheduler, ThreadPoolExecutor(4) as threads:
        results = threads.map(caller, range(4), timeout=PATIENCE)
        plan = alone(engine, some_ids(12), 3)
        for i, tokens in enumerate(results):
            twin = paged(engine)
            assert tokens == [alone(engine, some_ids(5 + 20 * i, turn), 5, twin) for turn in range(2)]
    assert plan == alone(engine, some_ids(12), 3)


def test_a_stream_yields_tokens_before_its_end(engine: Engine) -> None:
    passes, cancelled = itertools.count(), threading.Event()

    def hold(*_: object) -> None:
        """Wait before the last tokens until the checks are done."""
        if next(passes) >= 40:
            assert cancelled.wait(PATIENCE)

    with engine.decoder.layers[0].mlp.register_forward_hook(hold), Scheduler(engine, CONFIG) as scheduler:
        stream = scheduler.submit("a", packed(engine), some_ids(9), 400)
        tokens = iter(stream)
        head = [next(tokens) for _ in range(3)]
        with pytest.raises(ModelError, match="wait longer"):
            stream.collect(timeout=0)
        stream.cancel()
        cancelled.set()
        rest = list(tokens)
        assert head + rest == stream.collect() == stream.tokens
        assert stream.cancelled and stream.reason is FinishReason.CANCELLED and len(stream) < 400


@pytest.mark.parametrize("cancel", [False, True])
def test_a_closed_scheduler_has_ended_its_requests(engine: Engine, cancel: bool) -> None:
    scheduler = Scheduler(engine, CONFIG)
    streams = [scheduler.submit(str(i), packed(engine), some_ids(30, i), 30) for i in range(5)]
    scheduler.close(cancel)
    scheduler.close()
    assert all(stream.done for stream in streams)
    assert cancel or all(stream.reason is FinishReason.LENGTH for stream in streams)
    with pytest.raises(ModelError, match="scheduler is closed"):
        scheduler.submit("a", packed(engine), [5], 1)


def test_an_engine_that_closes_ends_the_requests() -> None:
    engine = TransformersEngine(tiny_model("qwen2", layers=2))
    engine.decoder.layers[0].mlp.register_forward_hook(lambda *_: until(lambda: engine._worker._closed))
    scheduler = Scheduler(engine)
    ends: list[FinishReason] = []
    stream = scheduler.submit("a", packed(engine), some_ids(9), 10_000, done=lambda _, reason: ends.append(reason))
    engine.close()
    with pytest.raises(ModelError, match="closed"):
        stream.collect(10)
    assert ends == [FinishReason.ERROR]
    with pytest.raises(ModelError, match="closed"):
        scheduler.submit("a", packed(engine), [5], 1)
    scheduler.close()


def test_refusals(engine: Engine, manual: Scheduler) -> None:
    with pytest.raises(ConfigError, match="max_new_tokens=0"):
        manual.submit("a", packed(engine), [5], 0)
    with pytest.raises(ConfigError, match="batches need packed or paged caches"):
        manual.submit("a", object(), [5], 1)
    with pytest.raises(ConfigError, match="shared_chunk=0"):
        SchedulerConfig(shared_chunk=0)
    assert not manual.turn()


def test_an_error_at_a_synchronisation_ends_its_request(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of a GPU are not of the type ModelError."""
    ids = some_ids(9)
    with Scheduler(engine, CONFIG) as scheduler:
        with monkeypatch.context() as broken:
            broken.setattr("memory.engine.scheduler.scheduler.most_likely", lambda *_: 1 / 0)
            first = scheduler.submit("a", packed(engine), ids, 4)
            with pytest.raises(ZeroDivisionError):
                first.collect()
        second = scheduler.submit("a", packed(engine), ids, 4)
        assert second.collect() == alone(engine, ids, 4)


def test_a_failing_batch_ends_all_requests(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Scheduler(engine, CONFIG)
    for call in ("step", "remove"):
        monkeypatch.setattr(scheduler._groups, call, lambda *_: 1 / 0)
    stream = scheduler.submit("a", packed(engine), some_ids(9), 4)
    with pytest.raises(ZeroDivisionError):
        stream.collect()
    scheduler.close(cancel=True)


def test_a_request_that_arrives_when_the_worker_has_no_more_work_is_served(engine: Engine) -> None:
    ids, is_idle, late = some_ids(9), threading.Event(), []

    class Watched(threading.Condition):
        def __exit__(self, *error: object) -> None:
            super().__exit__(*error)
            if is_idle.is_set() and threading.current_thread() is engine._worker._thread:
                is_idle.clear()
                late.append(scheduler.submit("b", packed(engine), ids, 4))

    with Scheduler(engine, CONFIG) as scheduler:
        scheduler._idle = Watched()
        scheduler.submit("a", packed(engine), ids, 4, done=lambda *_: is_idle.set())
        until(lambda: late)
        assert late[0].collect(PATIENCE) == alone(engine, ids, 4)
