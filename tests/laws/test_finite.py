"""Law 11: logits that are not finite are an error that names dtype and remedy, never a decision."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from keep_agent.errors import ModelError
from memory.engine.base import Engine
from memory.engine.models.tiny_models import tiny_model
from memory.engine.scheduler.batch import Batch
from memory.engine.scheduler.request_stream import Reason
from memory.engine.scheduler.scheduler import Scheduler
from memory.engine.transformers.finite_logits import are_finite, check_finite, most_likely
from memory.kv_cache.dense import DenseCache
from memory.kv_cache.quantization import PackFormat
from memory.kv_cache.quantized import QuantizedCache
from memory.loading.serial import Serial
from memory.method import MemoryMethod
from memory.prompt.layout import lay_out
from memory.recompute.full import Full
from tests.laws.broken import broken
from tests.laws.conftest import DEVICE, GetEngine, make_engine
from tests.memory.houses import furnish
from tests.memory.sessions import APPENDING, METHODS, QUERY, open_session

IDS = list(range(5, 25))
REFUSED = r"logits are not finite in float32, .*; fetch its weights again, or use another model"


@pytest.fixture(scope="module")
def own() -> Iterator[Engine]:
    with make_engine(tiny_model("qwen2", layers=4)) as made:
        yield made


@pytest.mark.parametrize("layer", [None, 0, 3])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_law_11_families(engine: Engine, value: float, layer: int | None) -> None:
    layout = lay_out((), (), IDS, False, engine.device)
    with broken(engine, value, layer), pytest.raises(ModelError, match=REFUSED):
        engine.prefill(layout, Full(), Serial())
    assert torch.isfinite(engine.prefill(layout, Full(), Serial()).logits).all()


@pytest.mark.parametrize("layer", [None, 0, 3])
@pytest.mark.parametrize("method", [*METHODS, *APPENDING], ids=lambda method: method.__name__)
def test_law_11_methods(own: Engine, method: Callable[[], MemoryMethod], layer: int | None) -> None:
    """Whether the weights break before anything is stored, or behind blocks that are whole."""
    for healthy in (0, 1):
        session = open_session(own, method())
        furnish(session.store)
        for _ in range(healthy):
            session.prefill("mug_1", QUERY)
            session.advance()
        with broken(own, float("nan"), layer), pytest.raises(ModelError, match=REFUSED):
            session.prefill("mug_1", QUERY)


def _extended(engine: Engine) -> DenseCache:
    return DenseCache(engine.info, 64, engine.device)


def _score(engine: Engine, best: int | None) -> None:
    cache = _extended(engine)
    engine.extend(cache, IDS)
    with broken(engine, float("nan")):
        engine.score(cache, [[7, number, number + 1] for number in range(5, 105)], best=best)


def _score_behind(engine: Engine) -> None:
    """The prompt's logits are broken, the candidates' would not be."""
    cache = _extended(engine)
    logits = engine.extend(cache, IDS).logits.clone()
    logits[0, 9] = float("-inf")
    cache.rewind(cache.length, logits)
    engine.score(cache, [[7], [8]])


def _generate(engine: Engine) -> None:
    cache = _extended(engine)
    logits = engine.extend(cache, IDS).logits
    with broken(engine, float("nan")):
        engine.generate(cache, logits, 4)


def _generate_behind(engine: Engine) -> None:
    cache = _extended(engine)
    logits = engine.extend(cache, IDS).logits.clone()
    logits[0, 9] = float("inf")
    engine.generate(cache, logits, 4)


def _extend(engine: Engine) -> None:
    with broken(engine, float("nan")):
        engine.extend(_extended(engine), IDS)


def _append(engine: Engine) -> None:
    with broken(engine, float("nan")):
        engine.append(_extended(engine), IDS)


def _batch(engine: Engine) -> None:
    batch = Batch(engine.decoder, [_packed(engine), _packed(engine)])
    with broken(engine, float("nan")):
        batch.step([7, 8])


def _packed(engine: Engine) -> QuantizedCache:
    cache = QuantizedCache(engine.info, PackFormat(8, 32), engine.device)
    engine.extend(cache, IDS)
    return cache


EXITS = {
    "score": lambda engine: _score(engine, None),
    "search": lambda engine: _score(engine, 3),
    "score behind": _score_behind,
    "generate": _generate,
    "generate behind": _generate_behind,
    "extend": _extend,
    "append": _append,
    "batch": _batch,
}


@pytest.mark.parametrize("name", EXITS)
def test_law_11_every_exit_of_the_engine(own: Engine, name: str) -> None:
    with pytest.raises(ModelError, match=REFUSED):
        EXITS[name](own)


def test_law_11_requests_of_many_agents(own: Engine) -> None:
    """Those whose prefill is broken, and those that break while they decode."""
    scheduler = Scheduler(own, automatic=False)
    caches = [QuantizedCache(own.spec, PackFormat(8, 32), own.decoder.device) for _ in range(2)]
    first = scheduler.submit("a", caches[0], IDS, 8)
    scheduler.turn()
    assert len(first) == 1
    with broken(own, float("nan")):
        second = scheduler.submit("b", caches[1], IDS, 8)
        scheduler.run_until_idle()
    for stream in (first, second):
        assert stream.reason is Reason.ERROR
        with pytest.raises(ModelError, match=REFUSED):
            stream.collect()
    third = scheduler.submit("a", _packed(own), IDS, 2)  # others go on
    scheduler.run_until_idle()
    assert len(third.collect()) == 2


def test_law_11_candidates_that_are_left_out_may_be_minus_infinity(own: Engine) -> None:
    cache = _extended(own)
    likely = own.extend(cache, IDS).logits[0].argmax().item()
    unlikely = ([number, number + 1, number + 2] for number in range(5, 205))
    scores = own.score(cache, [[likely], *unlikely], best=1).scores
    left_out = DEVICE == "cpu"  # on a GPU one forward scores all
    assert bool(scores.isneginf().any()) is left_out and not scores.isnan().any() and scores.argmax() == 0


def test_law_11_in_half_precision_the_remedy_is_another_dtype(engine_of: GetEngine) -> None:
    engine = engine_of("qwen2", torch.float16)
    weight = engine.decoder.module.model.layers[0].mlp.down_proj.weight.data
    kept = weight.clone()
    weight.fill_(6e4)
    try:
        with pytest.raises(ModelError, match=r"not finite in float16, .* set model\.dtype=float32"):
            engine.extend(_extended(engine), IDS)
    finally:
        weight.copy_(kept)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_any_number_of_many_counts(value: float) -> None:
    logits = torch.zeros(3, 1000, device=DEVICE)
    assert bool(are_finite(logits)) and most_likely(logits[0], torch.float32) == 0
    check_finite(logits, torch.float32)
    logits[1, 777] = value
    assert not bool(are_finite(logits))
    with pytest.raises(ModelError):
        check_finite(logits, torch.float32)
    with pytest.raises(ModelError):
        most_likely(logits[1], torch.float32)
