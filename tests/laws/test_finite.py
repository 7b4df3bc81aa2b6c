"""Law 11: logits that are not finite raise an error with dtype and remedy, and never become a decision."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from keep_agent.errors import ModelError
from memory.engine.base import Engine
from memory.engine.models.tiny_models import tiny_model
from memory.engine.scheduler.batch import Batch
from memory.engine.scheduler.request_stream import FinishReason
from memory.engine.scheduler.scheduler import Scheduler
from memory.engine.transformers.decoder import are_finite, check_finite, most_likely
from memory.kv_cache.dense import DenseCache
from memory.kv_cache.quantization import PackFormat
from memory.kv_cache.quantized import QuantizedCache
from memory.loading.serial import Serial
from memory.method import MemoryMethod
from memory.prompt.layout import lay_out
from memory.recompute.full import Full
from tests.laws.conftest import DEVICE, GetEngine, make_engine
from tests.laws.prompts import broken
from tests.memory.houses import furnish
from tests.memory.sessions import APPENDING, METHODS, QUERY, open_session

IDS = list(range(5, 25))
ERROR = r"logits are not finite in float32, .*; fetch its weights again, or use another model"


@pytest.fixture(scope="module")
def small() -> Iterator[Engine]:
    with make_engine(tiny_model("qwen2", layers=4)) as engine:
        yield engine


@pytest.mark.parametrize("layer", [None, 0, 3])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_law_11_families(engine: Engine, value: float, layer: int | None) -> None:
    layout = lay_out((), (), IDS, False, engine.device)
    with broken(engine, value, layer), pytest.raises(ModelError, match=ERROR):
        engine.prefill(layout, Full(), Serial())
    assert torch.isfinite(engine.prefill(layout, Full(), Serial()).logits).all()


@pytest.mark.parametrize("layer", [None, 0, 3])
@pytest.mark.parametrize("method", [*METHODS, *APPENDING], ids=lambda method: method.__name__)
def test_law_11_methods(small: Engine, method: Callable[[], MemoryMethod], layer: int | None) -> None:
    for healthy in (0, 1):
        session = open_session(small, method())
        furnish(session.store)
        for _ in range(healthy):
            session.prefill("mug_1", QUERY)
            session.advance()
        with broken(small, float("nan"), layer), pytest.raises(ModelError, match=ERROR):
            session.prefill("mug_1", QUERY)


def _cache(engine: Engine) -> DenseCache:
    return DenseCache(engine.info, 64, engine.device)


def _packed(engine: Engine) -> QuantizedCache:
    cache = QuantizedCache(engine.info, PackFormat(8, 32), engine.device)
    engine.extend(cache, IDS)
    return cache


CANDIDATES = [[7, number, number + 1] for number in range(5, 105)]
EXITS: dict[str, Callable[[Engine, DenseCache, torch.Tensor, Batch], object]] = {
    "score": lambda engine, cache, logits, batch: engine.score(cache, CANDIDATES),
    "search": lambda engine, cache, logits, batch: engine.score(cache, CANDIDATES, best=3),
    "generate": lambda engine, cache, logits, batch: engine.generate(cache, logits, 4),
    "extend": lambda engine, cache, logits, batch: engine.extend(_cache(engine), IDS),
    "append": lambda engine, cache, logits, batch: engine.append(_cache(engine), IDS),
    "batch": lambda engine, cache, logits, batch: batch.step([7, 8]),
}


@pytest.mark.parametrize("name", EXITS)
def test_law_11_every_exit_of_the_engine(small: Engine, name: str) -> None:
    cache, batch = _cache(small), Batch(small.decoder, [_packed(small), _packed(small)])
    logits = small.extend(cache, IDS).logits
    with broken(small, float("nan")), pytest.raises(ModelError, match=ERROR):
        EXITS[name](small, cache, logits, batch)


@pytest.mark.parametrize("value", [float("inf"), float("-inf")])
def test_law_11_intact_weights_after_a_broken_prompt(small: Engine, value: float) -> None:
    cache = _cache(small)
    logits = small.extend(cache, IDS).logits.clone()
    logits[0, 9] = value
    with pytest.raises(ModelError, match=ERROR):
        small.generate(cache, logits, 4)
    cache.rewind(len(IDS), logits)
    with pytest.raises(ModelError, match=ERROR):
        small.score(cache, [[7], [8]])


def test_law_11_requests_of_many_agents(small: Engine) -> None:
    """Break a request during its prefill and another during decoding; later requests succeed."""
    scheduler = Scheduler(small, automatic=False)
    caches = [small.new_cache(PackFormat(8, 32)) for _ in range(2)]
    first = scheduler.submit("a", caches[0], IDS, 8)
    scheduler.turn()
    assert len(first) == 1
    with broken(small, float("nan")):
        second = scheduler.submit("b", caches[1], IDS, 8)
        scheduler.run_until_idle()
    for stream in (first, second):
        assert stream.reason is FinishReason.ERROR
        with pytest.raises(ModelError, match=ERROR):
            stream.collect()
    third = scheduler.submit("a", _packed(small), IDS, 2)
    scheduler.run_until_idle()
    assert len(third.collect()) == 2


def test_law_11_skipped_candidates_may_have_minus_infinity(small: Engine) -> None:
    cache = _cache(small)
    likely = small.extend(cache, IDS).logits[0].argmax().item()
    unlikely = ([number, number + 1, number + 2] for number in range(5, 205))
    scores = small.score(cache, [[likely], *unlikely], best=1).scores
    skips = DEVICE == "cpu"  # on a GPU one forward scores all candidates
    assert bool(scores.isneginf().any()) is skips and not scores.isnan().any() and scores.argmax() == 0


def test_law_11_in_half_precision_the_remedy_is_another_dtype(engine_of: GetEngine) -> None:
    engine = engine_of("qwen2", torch.float16)
    weight = engine.decoder.module.model.layers[0].mlp.down_proj.weight.data
    original = weight.clone()
    weight.fill_(6e4)
    try:
        with pytest.raises(ModelError, match=r"not finite in float16, .* set model\.dtype=float32"):
            engine.extend(_cache(engine), IDS)
    finally:
        weight.copy_(original)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_single_number_that_is_not_finite_is_detected(value: float) -> None:
    logits = torch.zeros(3, 1000, device=DEVICE)
    assert bool(are_finite(logits)) and most_likely(logits[0], torch.float32) == 0
    check_finite(logits, torch.float32)
    logits[1, 777] = value
    assert not bool(are_finite(logits))
    with pytest.raises(ModelError):
        check_finite(logits, torch.float32)
    with pytest.raises(ModelError):
        most_likely(logits[1], torch.float32)
